"""What a session refuses of a loop of one's own: calls in another order, and what it gives to them."""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import numpy as np

from lockstep.errors import ConfigError

Value = TypeVar("Value")


def known(value: Value | None, call: str, needs: str) -> Value:
    """The value. Raises `ConfigError` if it is None, as the call that it `needs` was not made before."""
    if value is None:
        raise ConfigError(f"session.{call} needs session.{needs} before it; see examples/my_algorithm.py")
    return value


def check_totals(totals: Any, size: int) -> None:
    """Raise `ConfigError` unless these are statistics [`size`] that were summed over all shards."""
    if np.shape(totals) != (size,):
        raise ConfigError(
            f"totals has shape {list(np.shape(totals))}, not [{size}]; sum the statistics over all shards first: "
            'session.comm.sum_statistics(session.local_statistics(), "statistics")'
        )


def metrics_of(read: Any) -> dict[str, float]:
    """What `read` returns. Raises `ConfigError` if it is no function, or returns anything but metrics by name."""
    if not callable(read):
        raise ConfigError(f"read={read!r} must be a function that returns metrics by name; give metrics.read, no call")
    found: Any = read()
    if not isinstance(found, Mapping):
        raise ConfigError(f"read returned {found!r}; it must return metrics by name, such as {{'loss/value': 0.5}}")
    return dict(cast("Mapping[str, float]", found))
