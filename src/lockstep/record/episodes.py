"""The last hundred training episodes of a run, in an order that does not depend on the number of ranks."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

KEPT = 100
WIDTH = 1 + 2 * KEPT


class RecentEpisodes:
    """Collects one shard's episodes between two logs, as a row of fixed length for one message.

    Attributes:
        count: episodes of the shard since the run began.
    """

    def __init__(self) -> None:
        self.count = 0
        self._new: deque[tuple[int, float]] = deque(maxlen=KEPT)

    def add(self, update: int, returns: np.ndarray) -> None:
        """Add the episodes that ended in a rollout."""
        self.count += len(returns)
        self._new.extend((update, float(r)) for r in returns)

    def row(self) -> np.ndarray:
        """[WIDTH] count, then update and return of each new episode, which are then cleared."""
        row = np.zeros(WIDTH)
        row[0] = len(self._new)
        if self._new:
            row[1 : 1 + 2 * len(self._new)] = np.array(self._new).ravel()
        self._new.clear()
        return row

    def state(self) -> dict[str, Any]:
        """The new episodes and the count."""
        return {"count": self.count, "new": [list(episode) for episode in self._new]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state`."""
        self.count = state["count"]
        self._new.extend((update, value) for update, value in state["new"])


def merge(rows: np.ndarray) -> list[float]:
    """Returns of all shards' rows [num_shards, WIDTH], by update, then by shard, then by time."""
    found = [(row[1 + 2 * i], shard, i, row[2 + 2 * i]) for shard, row in enumerate(rows) for i in range(int(row[0]))]
    return [float(r) for *_, r in sorted(found)]
