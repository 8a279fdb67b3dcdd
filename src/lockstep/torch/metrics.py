"""A table of sums and weights on the device: adding costs no host sync, reading costs one transfer."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor


class Metrics:
    """Weighted means of a fixed set of names. What is added is summed over all ranks before, so all read the same.

    Attributes:
        table: [2, names] sums and weights since the last read.
    """

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self._column = {name: i for i, name in enumerate(names)}
        self._names = list(names)
        self.table = torch.zeros(2, len(names), dtype=torch.float64, device=device)

    def add(self, names: Sequence[str], sums: Tensor, weight: Tensor | float) -> None:
        """Add `sums` [len(names)], each a sum over rows that together weigh `weight`. `names` lie side by side."""
        first = self._column[names[0]]
        part = slice(first, first + len(names))
        self.table[0, part].add_(sums)  # `+=` would write each slice twice
        self.table[1, part].add_(weight)

    def read(self) -> dict[str, float]:
        """Means of what was added since the last read; a name of weight 0 is absent. Starts afresh."""
        table = cast("list[list[float]]", self.table.tolist())
        self.table.zero_()
        return {name: s / w for name, s, w in zip(self._names, *table, strict=True) if w > 0}
