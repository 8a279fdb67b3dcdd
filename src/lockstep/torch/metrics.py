"""Metrics as sums and weights on the device: adding needs no host sync, reading needs one transfer."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor


class Metrics:
    """Weighted means of a fixed set of names. Added numbers are sums over all ranks, so means are equal on all ranks.

    Attributes:
        table: [2, names] sums and weights since the last read.
    """

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self._column = {name: i for i, name in enumerate(names)}
        self._names = list(names)
        self.table = torch.zeros(2, len(names), dtype=torch.float64, device=device)

    def add(self, names: Sequence[str], sums: Tensor, weight: Tensor | float) -> None:
        """Add `sums` [len(names)], each a sum over rows of total weight `weight`. `names` must be adjacent."""
        first = self._column[names[0]]
        part = slice(first, first + len(names))
        self.table[0, part].add_(sums)  # `+=` would write each slice twice
        self.table[1, part].add_(weight)

    def read(self) -> dict[str, float]:
        """Means of what was added since the last read; a name of weight 0 is absent. Resets the sums."""
        table = cast("list[list[float]]", self.table.tolist())
        self.table.zero_()
        return {name: s / w for name, s, w in zip(self._names, *table, strict=True) if w > 0}
