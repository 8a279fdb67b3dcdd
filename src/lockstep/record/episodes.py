"""The mean return of the last training episodes of a run: at least a hundred, in whole updates.

All episodes of an update count alike. A cut within one would need an order of its episodes, and where environments
differ (levels of terrain, opponents), an order by environment prefers some of them.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

KEPT = 100
WIDTH = 1 + 3 * KEPT


class RecentEpisodes:
    """Collects one shard's episodes between two logs, as a row of fixed length for one message.

    Attributes:
        count: episodes of the shard since the run began.
    """

    def __init__(self) -> None:
        self.count = 0
        self._new: deque[tuple[int, int, float]] = deque(maxlen=KEPT)

    def add(self, update: int, count: int, total_return: float) -> None:
        """Add the number and the summed returns of the episodes that ended in an update."""
        self.count += count
        if count:
            self._new.append((update, count, total_return))

    def row(self) -> np.ndarray:
        """[WIDTH] number of new updates with episodes, then number, episodes and sum of each; they are cleared."""
        row = np.zeros(WIDTH)
        row[0] = len(self._new)
        if self._new:
            row[1 : 1 + 3 * len(self._new)] = np.array(self._new).ravel()
        self._new.clear()
        return row

    def state(self) -> dict[str, Any]:
        """The new episodes and the count."""
        return {"count": self.count, "new": [list(update) for update in self._new]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state`."""
        self.count = state["count"]
        for update, *rest in state["new"]:  # checkpoints of older versions have each episode by itself
            count, total_return = rest if len(rest) == 2 else (1, rest[0])
            self._new.append((update, count, total_return))


class RecentReturns:
    """Number and summed returns of the episodes of the last updates that have at least `KEPT` together."""

    def __init__(self) -> None:
        self._updates: deque[tuple[float, float]] = deque()

    def add(self, count: float, total_return: float) -> None:
        """Add the episodes that ended in an update; updates too old to count are dropped."""
        if not count:
            return
        self._updates.append((count, total_return))
        while sum(n for n, _ in self._updates) - self._updates[0][0] >= KEPT:
            self._updates.popleft()

    def merge(self, rows: np.ndarray) -> None:
        """Add the rows [num_shards, WIDTH] of all shards, update by update; sums are in the order of shards."""
        updates: dict[float, list[np.ndarray]] = {}
        for row in rows:
            for update, *episodes in row[1 : 1 + 3 * int(row[0])].reshape(-1, 3):
                updates.setdefault(float(update), []).append(np.array(episodes))
        for _, of_shards in sorted(updates.items()):
            count, total_return = np.sum(of_shards, 0)
            self.add(float(count), float(total_return))

    def mean(self) -> float | None:
        """The mean return; None before the first episode."""
        if not self._updates:
            return None
        return sum(total for _, total in self._updates) / sum(count for count, _ in self._updates)

    def state(self) -> list[list[float]]:
        """What the mean needs later."""
        return [list(update) for update in self._updates]

    def restore(self, state: Sequence[Sequence[float] | float]) -> None:
        """Continue from the result of `state`."""
        for update in state:  # checkpoints of older versions have the return of each episode
            self.add(*(update if isinstance(update, Sequence) else (1, update)))
