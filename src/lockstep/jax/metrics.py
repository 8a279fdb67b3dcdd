"""Metric means accumulated on the device: adding needs no host sync, reading one transfer."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array


class Metrics:
    """Weighted means of a fixed set of names; values must be summed over all ranks before they are added.

    The sums and weights since the last read are a table [2, names], which the pure functions take and return.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._column = {name: i for i, name in enumerate(names)}
        self._names = list(names)

    def zeros(self) -> np.ndarray:
        """An empty table."""
        return np.zeros((2, len(self._names)), np.float32)

    def add(
        self, table: Array | np.ndarray, names: Sequence[str], sums: Array | np.ndarray, weight: Array | float
    ) -> Array:
        """Add `sums` [len(names)] over rows of total weight `weight`; `names` must be consecutive."""
        first = self._column[names[0]]
        added = jnp.stack([sums, jnp.full_like(sums, weight)])
        return jnp.asarray(table).at[:, first : first + len(names)].add(added)

    def read(self, table: np.ndarray) -> dict[str, float]:
        """The means by name; names of weight 0 are absent."""
        return {name: s / w for name, s, w in zip(self._names, *table.tolist(), strict=True) if w > 0}
