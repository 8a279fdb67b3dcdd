"""What a tracker implements, and what the known ones share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Protocol

from lockstep.record.file_numbers import can_be_drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """What a tracker is told of a run at its start."""

    name: str
    """Name of the run directory."""
    directory: Path
    """The run directory."""
    config: Mapping[str, Any]
    """All settings by dotted name."""
    code: Mapping[str, str]
    """Versions of packages, and `git_commit`, with `+changes` if the working tree differs from it."""
    id: str | None
    """The result of `start` at an earlier start of the same run; None at the first."""


class Tracker(Protocol):
    """Records a run elsewhere. A class is constructed without arguments, on rank 0 only.

    All methods are called from one thread, never from the training loop. What they raise becomes one warning.
    """

    def start(self, run: TrackedRun) -> str:
        """Create the run in the tracker, or continue the one with `run.id`; returns its id."""
        ...

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record one line of `metrics.jsonl`; all values are finite."""
        ...

    def evaluation(self, step: int, returns: Sequence[float], lengths: Sequence[int]) -> None:
        """Record one evaluation, episode by episode."""
        ...

    def file(self, path: Path, step: int) -> None:
        """Record a file of the run: a video, or at the end its config and summary."""
        ...

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Record the result (`summary.json`) and end the run in the tracker."""
        ...

    def abandon(self) -> None:
        """End what would keep this process alive; called, from another thread, if the others take too long at the end.

        A class may leave it out.
        """
        ...


def evaluation_metrics(returns: Sequence[float], lengths: Sequence[float]) -> dict[str, float]:
    """An evaluation as metrics, for trackers that take numbers only; empty if no episode has a return."""
    known = finite_returns(returns)
    if not known or len(lengths) == 0:
        return {}
    return {
        "evaluation/return_mean": fmean(known),
        "evaluation/return_std": pstdev(known),
        "evaluation/length_mean": fmean(lengths),
    }


def finite_returns(returns: Sequence[float]) -> list[float]:
    """The returns that are numbers that can be averaged."""
    return [value for value in returns if can_be_drawn(value)]
