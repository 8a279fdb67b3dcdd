"""Checks of what callers give to collectives, the same for both frameworks."""

import math
from numbers import Real
from typing import Any, cast

import numpy as np

from lockstep.errors import ConfigError


def check_source(source: int, size: int) -> None:
    """Raise `ConfigError` unless a rank of this number exists."""
    if not isinstance(cast(object, source), int | np.integer) or not 0 <= source < size:
        raise ConfigError(f"source={source!r} is not a rank: there are {size}, from 0 to {size - 1}")


def check_weight(weight: Any) -> None:
    """Raise `ConfigError` for what weighs nothing sensible; arrays of JAX and tensors on a GPU are not read."""
    shape = tuple(getattr(weight, "shape", ()))
    if math.prod(shape) != 1:
        raise ConfigError(
            f"weight has shape {list(shape)}, but a rank has one weight: give a number, or an array of one element"
        )
    if not isinstance(weight, Real | np.bool_) and not hasattr(weight, "shape"):
        raise ConfigError(f"weight={weight!r} must be a number")
    number = _number_on_host(weight)
    if number is not None and not 0 <= number < math.inf:
        raise ConfigError(f"weight={number} must be a finite number of at least 0")


def a_type(value: object) -> str:
    """A value's type with its article, for messages."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def check_number(given: int, needed: int, what: str = "rows", each: str = "shard of this rank") -> None:
    """Raise `ConfigError` unless as many of `what` were given as are needed, one for each of `each`."""
    if given != needed:
        raise ConfigError(f"{what} given: {given}; needed: {needed}, one for each {each}")


def check_timeouts(timeout_s: Any, startup_timeout_s: Any) -> None:
    """Raise `ConfigError` unless both are numbers above 0; only the second may be infinite."""
    if not (_is_positive(timeout_s) and timeout_s < math.inf):
        raise ConfigError(f"timeout_s={timeout_s} must be a finite number of seconds above 0")
    if not _is_positive(startup_timeout_s):
        raise ConfigError(f"startup_timeout_s={startup_timeout_s} must be a number of seconds above 0")


def _number_on_host(weight: Any) -> float | None:
    """The number, if reading it waits for no device."""
    if isinstance(weight, int | float):
        return float(weight)
    if isinstance(weight, np.generic | np.ndarray) or _is_on_cpu(weight):
        return float(cast(Any, weight).item())
    return None


def _is_on_cpu(value: Any) -> bool:
    """Whether this is a tensor of torch in the host's memory."""
    return getattr(getattr(value, "device", None), "type", None) == "cpu"


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and bool(value > 0)
