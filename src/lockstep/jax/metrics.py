"""Means of what was learned, summed on the device: adding costs no host sync, reading costs one transfer."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array


class Metrics:
    """Weighted means of a fixed set of names. What is added is summed over all ranks before, so all read the same.

    The sums and weights since the last read are a table [2, names], a value like any other; the functions are pure.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._column = {name: i for i, name in enumerate(names)}
        self._names = list(names)

    def zeros(self) -> Array:
        """The table of nothing."""
        return jnp.zeros((2, len(self._names)), jnp.float32)

    def add(
        self, table: Array | np.ndarray, names: Sequence[str], sums: Array | np.ndarray, weight: Array | float
    ) -> Array:
        """Add `sums` [len(names)], each a sum over rows that together weigh `weight`. `names` lie side by side."""
        first = self._column[names[0]]
        added = jnp.stack([sums, jnp.full_like(sums, weight)])
        return jnp.asarray(table).at[:, first : first + len(names)].add(added)

    def read(self, table: np.ndarray) -> dict[str, float]:
        """Means of what was added to the table; a name of weight 0 is absent."""
        return {name: s / w for name, s, w in zip(self._names, *table.tolist(), strict=True) if w > 0}
