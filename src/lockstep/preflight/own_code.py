"""Names of the user's own code in a run: for use from any directory, and for comparing hosts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lockstep.envs.load import absolute, portable
from lockstep.run import Run, SomeRun


def with_whole_paths(run: SomeRun) -> SomeRun:
    """The same run, which finds files of the user's own from any directory."""
    return _renamed(run, absolute)


def without_folders(run: SomeRun) -> SomeRun:
    """The run as it reads on every host: each may keep the user's files in a folder of its own."""
    return _renamed(run, portable)


def _renamed(run: SomeRun, change: Callable[[str], str]) -> SomeRun:
    renamed: dict[str, Any] = {"env": replace(run.env, wrappers=tuple(change(name) for name in run.env.wrappers))}
    if run.task is not None:
        renamed["task"] = change(run.task)
    if isinstance(run, Run) and run.network.module is not None:
        renamed["network"] = replace(run.network, module=change(run.network.module))
    return replace(run, **renamed)
