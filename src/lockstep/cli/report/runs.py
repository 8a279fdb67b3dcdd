"""What run directories tell of their runs: finished, running, failed, interrupted, and those that were cut short."""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from lockstep.config import settings
from lockstep.errors import ConfigError
from lockstep.record.run_dir import RUN_FILE, SUMMARY_FILE

_METRICS_FILE, _EVALUATIONS_FILE = "metrics.jsonl", "evaluations.jsonl"
_FILES = (RUN_FILE, SUMMARY_FILE, _METRICS_FILE)
_DEPTH = 3
"""How far below a directory runs are looked for."""
_FRESH_S = 120.0
"""Where locks do not tell: a run that wrote so recently still goes on."""
_ESTIMATOR = "weighted_sequential_dr"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRun:
    """One run, as far as its files tell."""

    path: Path
    status: str
    """That of `summary.json`; or `running`, or `cut short`: it ended without writing one."""
    error: str | None
    settings: Mapping[str, Any]
    """Of its config, by dotted names."""
    ranks: int | None
    steps: int
    """Environment steps; rows where it learns from a log."""
    total_steps: int | None
    steps_per_second: float | None
    last_return: float | None
    best_return: float | None
    return_from: str | None
    """`evaluation`, or `training` where nothing was evaluated: the mean of the last 100 episodes."""
    estimate: tuple[float, float | None, float | None] | None
    """What a log says of the policy's discounted return (weighted sequential doubly robust), and its interval."""
    logged: float | None
    """The discounted return in the log itself."""


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run directories that are named, and those below directories that are named, each once.

    Raises:
        ConfigError: a path does not exist, or holds no run.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path} does not exist; give run directories, or a directory of them, such as runs/")
        below = list(_below(path, _DEPTH))
        if not below:
            raise ConfigError(
                f"{path} holds no run (no {RUN_FILE}); give run directories, or a directory of them, such as runs/"
            )
        for run in below:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def read_run(path: Path) -> FoundRun:
    """What the files of a run directory tell; a file that is missing, cut off or damaged tells nothing."""
    config, summary = _config(path), _json(path / SUMMARY_FILE)
    metrics, evaluations = list(_lines(path / _METRICS_FILE)), list(_lines(path / _EVALUATIONS_FILE))
    last, best, source = _returns(metrics, evaluations, summary)
    running = _is_running(path)
    counted = {} if running else summary
    step, seconds = (_number(metrics[-1].get(name)) for name in ("step", "time_s")) if metrics else (None, None)
    speed = _number(counted.get("steps_per_second")) or (step / seconds if step and seconds else None)
    return FoundRun(
        path=path,
        status="running" if running else str(summary.get("status", "cut short")),
        error=None if running else summary.get("error"),
        settings=config,
        ranks=summary.get("world_size") or None,
        steps=int(_number(counted.get("env_steps")) or step or 0),
        total_steps=config.get("total_steps"),
        steps_per_second=speed,
        last_return=last,
        best_return=best,
        return_from=source,
        estimate=_estimate(metrics, summary),
        logged=next((value for line in reversed(metrics) if (value := _number(line.get("estimate/logged")))), None),
    )


def _below(path: Path, depth: int) -> Iterator[Path]:
    if any((path / name).is_file() for name in _FILES):
        yield path
    elif path.is_dir() and depth > 0:
        with suppress(OSError):  # a folder that may not be read
            for inner in sorted(path.iterdir()):
                if inner.is_dir():
                    yield from _below(inner, depth - 1)


def _is_running(path: Path) -> bool:
    """Whether a process holds the run, as `lockstep.record.run_dir.hold` does."""
    descriptor = None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return not (path / SUMMARY_FILE).exists() and time.time() - _written_at(path) < _FRESH_S
    else:
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _written_at(path: Path) -> float:
    times = [0.0]
    for name in _FILES:
        with suppress(OSError):
            times.append((path / name).stat().st_mtime)
    return max(times)


def _returns(
    metrics: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]
) -> tuple[float | None, float | None, str | None]:
    """Last and best mean return, and where they are from."""
    means = [mean for line in evaluations if (mean := _mean(line.get("returns"))) is not None]
    if not means and (mean := _number(summary.get("eval_return_mean"))) is not None:
        means = [mean]
    if means:
        return means[-1], max(means), "evaluation"
    means = [mean for line in metrics if (mean := _number(line.get("episode/return_mean_100"))) is not None]
    return (means[-1], max(means), "training") if means else (None, None, None)


def _estimate(
    metrics: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]
) -> tuple[float, float | None, float | None] | None:
    found: Any = summary.get("estimates")
    for key in ("estimates", "reward", _ESTIMATOR):
        found = settings.value_of(found, key)
    value = _number(settings.value_of(found, "value"))
    if value is not None:
        return value, _number(settings.value_of(found, "low")), _number(settings.value_of(found, "high"))
    values = (_number(line.get(f"estimate/{_ESTIMATOR}")) for line in reversed(metrics))
    value = next((value for value in values if value is not None), None)
    return None if value is None else (value, None, None)


def _mean(values: Any) -> float | None:
    numbers = [_number(value) for value in cast(list[Any], values)] if isinstance(values, list) else []
    known = [value for value in numbers if value is not None]
    return fmean(known) if known else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _config(path: Path) -> dict[str, Any]:
    """The settings as they were written: by any version, or by a loop of the user's own."""
    try:
        return dict(_flat(settings.parse((path / RUN_FILE).read_text(encoding="utf-8"), RUN_FILE)))
    except (OSError, UnicodeDecodeError, ConfigError):
        return {}


def _flat(data: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in cast(Mapping[Any, Any], data).items() if isinstance(data, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _flat(cast(Any, value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines; a line that its writer did not finish is left out."""
    with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            with suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict):
                    yield cast(dict[str, Any], found)
