"""Numbers in the files of a run, which may be cut off, damaged or written by another program."""

import math
from typing import TypeGuard

LARGEST_DRAWN = 1e300
"""Numbers beyond it overflow when they are summed and scaled for a chart."""


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value of a file is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def number_of(value: object) -> float | None:
    """A finite number of a file; None for anything else."""
    if not is_number(value):
        return None
    try:
        found = float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return None
    return found if math.isfinite(found) else None


def can_be_drawn(value: float) -> bool:
    """Whether a number may be summed and scaled for a chart: not one so large that this overflows."""
    return abs(value) <= LARGEST_DRAWN  # false for NaN


def whole_number_of(value: object) -> int | None:
    """A count in a file, such as a number of steps; None for anything else."""
    found = number_of(value)
    return None if found is None else int(found)
