"""The returns of an evaluation, as `evaluations.jsonl` has them."""

from statistics import fmean
from typing import Any, cast

from lockstep.record.file_numbers import number_of


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
