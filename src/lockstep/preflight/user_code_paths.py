"""File paths of user code in a run's config: absolute, or portable between hosts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lockstep.algorithms.ppo import PPOConfig
from lockstep.envs.load import absolute, portable
from lockstep.run import Run, SomeRun


def with_absolute_paths(run: SomeRun) -> SomeRun:
    """The run with absolute paths, which resolve from any directory."""
    return _renamed(run, absolute)


def with_portable_paths(run: SomeRun) -> SomeRun:
    """The run with file names only, which are equal on all hosts."""
    return _renamed(run, portable)


def _renamed(run: SomeRun, change: Callable[[str], str]) -> SomeRun:
    renamed: dict[str, Any] = {
        "env": replace(run.env, wrappers=tuple(change(name) for name in run.env.wrappers)),
        "trackers": tuple(change(name) for name in run.trackers),
    }
    if run.task is not None:
        renamed["task"] = change(run.task)
    if isinstance(run, Run) and run.network.module is not None:
        renamed["network"] = replace(run.network, module=change(run.network.module))
    if isinstance(run.algorithm, PPOConfig) and run.algorithm.symmetry is not None:
        renamed["algorithm"] = replace(run.algorithm, symmetry=change(run.algorithm.symmetry))
    return replace(run, **renamed)
