"""Access to PyTorch's batches and losses for `lockstep.session.non_finite`."""

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from lockstep.torch.batch import RowBatch
from lockstep.torch.flat import FlatParameters


class LossReader:
    """The `lockstep.session.non_finite.LossReader` of PyTorch.

    A batch is the tuple of the loss's arguments: one batch; for offline Q-learning also the same rows with single
    steps, for algorithms of logged continuous actions the noise of the rows.

    Args:
        loss: returns the loss, its sums, and possibly more.
        flat: its gradient is overwritten.
    """

    def __init__(self, loss: Callable[..., tuple[Tensor, ...]], flat: FlatParameters) -> None:
        self._loss = loss
        self._flat = flat

    def arrays(self, batch: Sequence[RowBatch]) -> dict[str, np.ndarray]:
        """Columns on the host: `batch.*`, then `single.*` of the same rows with single steps, or `noise.*`."""
        return {
            f"{_prefix(batch, i)}.{name}": tensor.detach().cpu().numpy()
            for i, part in enumerate(batch)
            for name, tensor in part.columns().items()
        }

    def is_finite(self, batch: Sequence[RowBatch], first: int, count: int) -> bool:
        """Whether loss and gradient of these rows are finite."""
        self._flat.zero_gradient_()
        loss, sums, *_ = self._loss(*(part.rows(first, count) for part in batch))
        loss.backward()
        norm = cast(Tensor, torch.linalg.vector_norm(self._flat.gradient))
        return bool((sums.sum() + norm).isfinite())


def _prefix(batch: Sequence[RowBatch], i: int) -> str:
    """What the columns of the loss's argument `i` are called by."""
    if i == 0:
        return "batch"
    return "single" if type(batch[i]) is type(batch[0]) else type(batch[i]).__name__.lower()
