"""Metric means accumulated on the device: adding needs no host sync, reading one transfer."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.record.metric_means import check_sums, find_columns


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
        """Add `sums` [len(names)] over rows of total weight `weight`, in any order, to a table, which is returned.

        Raises:
            ConfigError: a name is not one of the set, or given twice; or there is not one sum for each.
        """
        check_sums(names, np.size(sums))
        columns = find_columns(self._column, names)
        added = jnp.stack([sums, jnp.full_like(sums, weight)])
        where = columns if isinstance(columns, slice) else np.array(columns)
        return jnp.asarray(table).at[:, where].add(added)

    def read(self, table: np.ndarray) -> dict[str, float]:
        """The means by name; names of weight 0 are absent."""
        return {name: s / w for name, s, w in zip(self._names, *table.tolist(), strict=True) if w > 0}
