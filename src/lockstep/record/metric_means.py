"""Means of an algorithm's metrics between two log lines, on the host."""

from collections.abc import Sequence

import numpy as np


class MetricMeans:
    """Weighted means of a fixed set of names. Added values are sums over all ranks, so the means are equal on all.

    Attributes:
        table: [2, names] float64, sums and weights since the last read.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._column = {name: i for i, name in enumerate(names)}
        self.table = np.zeros((2, len(self._column)))

    def add(self, names: Sequence[str], sums: np.ndarray | Sequence[float], weight: float) -> None:
        """Add `sums` [len(names)], each a sum over rows that together weigh `weight`."""
        columns = [self._column[name] for name in names]
        self.table[0, columns] += sums
        self.table[1, columns] += weight

    def read(self) -> dict[str, float]:
        """Means since the last read; a name of weight 0 is absent. Resets the sums."""
        table = self.table.tolist()
        self.table[:] = 0.0
        return {name: s / w for name, s, w in zip(self._column, *table, strict=True) if w > 0}
