"""The first line that a training prints: task, settings, devices and run directory.

It is printed before a framework is imported and so names the device only as far as it is known then.
"""

from pathlib import Path
from typing import Any

from lockstep.envs.load import portable
from lockstep.run import AnyRun, OfflineRun
from lockstep.system.files import shown_path
from lockstep.world import World

_SHOWN = ("num_envs", "num_steps", "total_steps", "epochs", "batch_size", "learning_rate", "precision")
"""Settings of the run or its algorithm that are shown, if it has them."""
_DEFAULTS = {"precision": "float32"}
"""Values that are not shown."""


def startup_line(
    run: AnyRun, world: World, run_dir: Path | None, *, num_shards: int | None = None, step: int | None = None
) -> str:
    """One line: task, algorithm, framework, ranks, device, settings, run directory.

    `run_dir` is None while it is not known; `num_shards` and `step` are those of the checkpoint to resume, if any.
    """
    ranks = world.size * run.devices_per_process
    subject = f"logged data in {shown_path(Path(run.data))}" if isinstance(run, OfflineRun) else portable(run.task)
    values = {name: getattr(run, name, getattr(run.algorithm, name, None)) for name in _SHOWN}
    shown = {name: value for name, value in values.items() if value not in (None, _DEFAULTS.get(name))}
    shown |= {"seed": run.seed, "num_shards": _shards(run.num_shards, num_shards, ranks)}
    parts = [
        f"{subject}: {run.algo}, {run.ml_framework}, {ranks} rank{'s' * (ranks > 1)} on {_device(run)}",
        " ".join(f"{name}={_plain(value)}" for name, value in shown.items()),
    ]
    if step is not None:
        parts.append(f"resuming from step {step}")  # not "resumed": its files are read later, and may be damaged
    if run_dir is not None:
        parts.append(f"run directory {shown_path(run_dir)}")
    return "; ".join(parts)


def _shards(pinned: int | None, of_checkpoint: int | None, ranks: int) -> str:
    """The number of shards, and what decides it: only pinned ones promise the same bits on any number of ranks."""
    if pinned is not None:
        return f"{pinned} (pinned)"
    return f"{ranks} (follows the ranks)" if of_checkpoint is None else f"{of_checkpoint} (of the checkpoint)"


def _device(run: AnyRun) -> str:
    if run.device != "auto":
        return run.device
    from lockstep.launch.gpus import installed_gpus

    return "cuda" if installed_gpus(run.ml_framework) else "cpu"


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
