"""The returns of an evaluation, as `evaluations.jsonl` has them."""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from lockstep.record.file_numbers import number_of, whole_number_of
from lockstep.record.follow import JsonLinesFollower


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """An evaluation of a run."""

    step: int
    return_mean: float


def mean_return(returns: object) -> float | None:
    """The mean of the returns, without episodes whose return is not a number (`null`); None if no episode has one."""
    numbers = [number_of(value) for value in cast(list[Any], returns)] if isinstance(returns, list) else []
    known = [value for value in numbers if value is not None]
    if not known:
        return None
    try:
        return fmean(known)
    except OverflowError:  # their sum is too large
        return sum(value / len(known) for value in known)


def best_evaluation(path: Path) -> EvaluationResult | None:
    """The best evaluation in a file, the first of equal ones; None without evaluations."""
    follower, best = JsonLinesFollower(path), None
    follower.update()
    for line in follower.lines:
        mean, step = mean_return(line.get("returns")), whole_number_of(line.get("step"))
        if mean is not None and step is not None and (best is None or mean > best.return_mean):
            best = EvaluationResult(step, mean)
    return best
