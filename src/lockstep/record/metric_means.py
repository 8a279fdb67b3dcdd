"""Means of an algorithm's metrics between two log lines, on the host; and which columns metrics have, anywhere."""

from collections.abc import Mapping, Sequence

import numpy as np

from lockstep.errors import ConfigError


def find_columns(columns: Mapping[str, int], names: Sequence[str]) -> slice | list[int]:
    """The columns of the metrics `names`, in their order; a slice if they follow each other.

    Raises:
        ConfigError: a name is not among `columns`, or given twice.
    """
    unknown = [name for name in names if name not in columns]
    if unknown:
        raise ConfigError(f"there is no metric {', '.join(unknown)}; the known ones: {', '.join(columns)}")
    if len(set(names)) < len(names):
        raise ConfigError(f"each metric may be added once in a call, not as in {', '.join(names)}")
    found = [columns[name] for name in names]
    first = found[0] if found else 0
    following = range(first, first + len(found))
    return slice(first, following.stop) if found == list(following) else found


def check_sums(names: Sequence[str], count: int) -> None:
    """Raise `ConfigError` unless there are as many sums as names."""
    if count != len(names):
        raise ConfigError(f"sums given: {count}; needed: {len(names)}, one for each of {', '.join(names)}")


class MetricMeans:
    """Weighted means of a fixed set of names. Added values are sums over all ranks, so the means are equal on all.

    Attributes:
        table: [2, names] float64, sums and weights since the last read.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._column = {name: i for i, name in enumerate(names)}
        self.table = np.zeros((2, len(self._column)))

    def add(self, names: Sequence[str], sums: np.ndarray | Sequence[float], weight: float) -> None:
        """Add `sums` [len(names)], each a sum over rows that together weigh `weight`; names in any order.

        Raises:
            ConfigError: a name is not one of the set, or given twice; or there is not one sum for each.
        """
        check_sums(names, np.size(sums))
        columns = find_columns(self._column, names)
        self.table[0, columns] += sums
        self.table[1, columns] += weight

    def read(self) -> dict[str, float]:
        """Means since the last read; a name of weight 0 is absent. Resets the sums."""
        table = self.table.tolist()
        self.table[:] = 0.0
        return {name: s / w for name, s, w in zip(self._column, *table, strict=True) if w > 0}
