"""Paths in a run's config: absolute, or portable between hosts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.algorithms.ppo import PPOConfig
from lockstep.algorithms.replay import ReplayConfig
from lockstep.envs.load import absolute, portable
from lockstep.run import OfflineRun, Run, SomeRun


def with_absolute_paths(run: SomeRun) -> SomeRun:
    """The run with absolute paths, which resolve from any directory."""
    return _with_folders(with_code(run, lambda _, name: absolute(name)), lambda path: str(Path(path).absolute()))


def with_portable_code(run: SomeRun) -> SomeRun:
    """The run with the user's code by file names only, which are equal on all hosts."""
    return with_code(run, lambda _, name: portable(name))


def with_portable_paths(run: SomeRun) -> SomeRun:
    """The run with names of files and folders only, which are equal on all hosts."""
    return _with_folders(with_portable_code(run), lambda path: Path(path).name)


def with_code(run: SomeRun, change: Callable[[str, str], str]) -> SomeRun:
    """The run with other names of the user's code: `change(setting, name)` of each."""
    renamed: dict[str, Any] = {
        "env": replace(run.env, wrappers=tuple(change("env.wrappers", name) for name in run.env.wrappers)),
        "trackers": tuple(change("trackers", name) for name in run.trackers),
    }
    if run.task is not None:
        renamed["task"] = change("task", run.task)
    if isinstance(run, Run) and run.network.module is not None:
        renamed["network"] = replace(run.network, module=change("network.module", run.network.module))
    if isinstance(run.algorithm, PPOConfig) and run.algorithm.symmetry is not None:
        renamed["algorithm"] = replace(run.algorithm, symmetry=change("symmetry", run.algorithm.symmetry))
    return replace(run, **renamed)


def _with_folders(run: SomeRun, change: Callable[[str], str]) -> SomeRun:
    renamed: dict[str, Any] = {}
    if isinstance(run, OfflineRun):
        given = {"data": run.data, "eval_data": run.eval_data, "model_path": run.model_path}
        renamed = {name: path and change(path) for name, path in given.items()}
    elif isinstance(run.algorithm, ReplayConfig) and run.algorithm.replay_path is not None:
        renamed["algorithm"] = replace(run.algorithm, replay_path=change(run.algorithm.replay_path))
    return replace(run, **renamed)
