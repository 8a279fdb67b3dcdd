"""Metrics as sums and weights on the device: adding needs no host sync, reading needs one transfer."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from lockstep.record.metric_means import check_sums, find_columns


class Metrics:
    """Weighted means of a fixed set of names. Added numbers are sums over all ranks, so means are equal on all ranks.

    Attributes:
        table: [2, names] sums and weights since the last read.
    """

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self._column = {name: i for i, name in enumerate(names)}
        self._names = list(names)
        self._parts: dict[tuple[str, ...], slice | Tensor] = {}
        self.table = torch.zeros(2, len(names), dtype=torch.float64, device=device)

    def add(self, names: Sequence[str], sums: Tensor, weight: Tensor | float) -> None:
        """Add `sums` [len(names)], each a sum over rows of total weight `weight`; names in any order.

        Raises:
            ConfigError: a name is not one of the set, or given twice; or there is not one sum for each.
        """
        check_sums(names, sums.numel())
        part = self._parts.get(key := tuple(names))
        if part is None:
            part = self._parts[key] = self._columns(key)
        if isinstance(part, slice):
            self.table[0, part].add_(sums)  # `+=` would write each slice twice
            self.table[1, part].add_(weight)
        else:
            self.table[0, part] += sums
            self.table[1, part] += weight

    def _columns(self, names: tuple[str, ...]) -> slice | Tensor:
        """Their columns; found once, as a copy to a GPU would wait for it."""
        found = find_columns(self._column, names)
        return found if isinstance(found, slice) else torch.tensor(found, device=self.table.device)

    def read(self) -> dict[str, float]:
        """Means of what was added since the last read; a name of weight 0 is absent. Resets the sums."""
        table = cast("list[list[float]]", self.table.tolist())
        self.table.zero_()
        return {name: s / w for name, s, w in zip(self._names, *table, strict=True) if w > 0}
