"""The result of a run, `summary.json`: schema 1."""

import os
import platform
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from signal import Signals
from typing import Any

from lockstep.distributed.timers import PHASES
from lockstep.run import AnyRun, to_dict

SCHEMA = 1

_REPORTED = {"lockstep": "lockstep-rl", "numpy": "numpy", "gymnasium": "gymnasium"}
_OF_FRAMEWORK = {"torch": ("torch",), "jax": ("jax", "jaxlib")}


def empty_summary(run: AnyRun | Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All keys, in order, with the values before the first step; `status` is `failed` until the run completes it."""
    known = dict(run or {}) if run is None or isinstance(run, Mapping) else to_dict(run)
    return {
        "schema": SCHEMA,
        "status": "failed",
        "error": None,
        "task": known.get("task"),
        "algo": known.get("algo"),
        "ml_framework": known.get("ml_framework"),
        "seed": known.get("seed"),
        "world_size": 0,
        "num_shards": known.get("num_shards") or 0,
        "shards_pinned": known.get("num_shards") is not None,
        "backend": None,
        "devices": [],
        "env_steps": 0,
        "updates": 0,
        "episodes": 0,
        "wall_time_s": 0.0,
        "startup_s": 0.0,
        "steps_per_second": 0.0,
        "return_mean_100": None,
        "eval_return_mean": None,
        "eval_return_std": None,
        "eval_episodes": 0,
        "solved_at_step": None,
        "solved_at_s": None,
        "params_fingerprint": None,
        "phases_s": dict.fromkeys(PHASES, 0.0),
        "ranks": [],
        "restarts": 0,
        "resumed_from": None,
        "versions": versions(known.get("ml_framework")),
    }


def stopped_by(number: int) -> str:
    """The `error` of a run that a signal interrupted."""
    return f"stopped by {Signals(number).name}"


def signal_of(error: str) -> Signals:
    """The signal that an `error` ends with: that of `stopped_by`, or of a launcher, "interrupted by SIGINT"."""
    return Signals[error.rpartition(" ")[2]]


def versions(framework: str | None = None) -> dict[str, str]:
    """Versions of Python and of the packages that affect numbers, those of `framework` among them, if installed."""
    found = {"python": platform.python_version()}
    packages = _REPORTED | {name: name for name in _OF_FRAMEWORK.get(framework or "", ())}
    for name, distribution in packages.items():
        try:
            found[name] = version(distribution)
        except PackageNotFoundError:
            continue
    return found


def seconds_since_process_start() -> float:
    """The age of this process, with interpreter start and imports."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
