"""The last hundred training episodes of a run, in an order that no number of ranks changes."""

from collections import deque

import numpy as np

KEPT = 100
WIDTH = 1 + 2 * KEPT


class RecentEpisodes:
    """Collects one shard's episodes between two logs, as a row of fixed length for one message."""

    def __init__(self) -> None:
        self._new: deque[tuple[int, float]] = deque(maxlen=KEPT)

    def add(self, update: int, returns: np.ndarray) -> None:
        """Episodes that ended in a rollout."""
        self._new.extend((update, float(r)) for r in returns)

    def row(self) -> np.ndarray:
        """[WIDTH] count, then update and return of each; starts afresh."""
        row = np.zeros(WIDTH)
        row[0] = len(self._new)
        if self._new:
            row[1 : 1 + 2 * len(self._new)] = np.array(self._new).ravel()
        self._new.clear()
        return row


def merge(rows: np.ndarray) -> list[float]:
    """Returns of all shards' rows [num_shards, WIDTH], by update, then by shard, then by time."""
    found = [(row[1 + 2 * i], shard, i, row[2 + 2 * i]) for shard, row in enumerate(rows) for i in range(int(row[0]))]
    return [float(r) for *_, r in sorted(found)]
