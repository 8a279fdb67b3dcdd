"""Checks of what callers give to collectives, the same for both frameworks."""

import math
from typing import Any

from lockstep.errors import ConfigError


def check_source(source: int, size: int) -> None:
    """Raise `ConfigError` unless a rank of this number exists."""
    if not 0 <= source < size:
        raise ConfigError(f"source={source} is not a rank: there are {size}, from 0 to {size - 1}")


def check_weight(weight: Any) -> None:
    """Raise `ConfigError` for a number that weighs nothing sensible; arrays on a device are not read."""
    if isinstance(weight, int | float) and not 0 <= weight < math.inf:
        raise ConfigError(f"weight={weight} must be a finite number of at least 0")
