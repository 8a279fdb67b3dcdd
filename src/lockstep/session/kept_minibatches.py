"""The minibatches in which the source of a number that is not finite is looked for."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Part = TypeVar("Part")

MAX_KEPT = 64
"""Minibatches after which the device is asked whether all were finite."""


class KeptMinibatches(Generic[Part]):
    """The minibatches of an update since all numbers were last known to be finite.

    Args:
        non_finite: whether a number that is not finite was met; waits for the device.
        enabled: whether such a number stops the run; else nothing is kept.

    Attributes:
        minibatches: of each gradient step every local shard's part; empty once it is forgotten, so that the others
            keep their place.
    """

    def __init__(self, non_finite: Callable[[], bool], *, enabled: bool) -> None:
        self._non_finite, self._enabled = non_finite, enabled
        self.minibatches: list[Sequence[Part]] = []
        self._num_forgotten = 0

    def add(self, *minibatches: Sequence[Part]) -> None:
        """Keep these, of which the gradient steps have been taken; forget all once they are many, and finite."""
        if not self._enabled:
            return
        self.minibatches += minibatches
        if len(self.minibatches) - self._num_forgotten >= MAX_KEPT and not self._non_finite():
            self._num_forgotten = len(self.minibatches)
            self.minibatches = [()] * self._num_forgotten
