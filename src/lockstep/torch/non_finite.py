"""Access to PyTorch's batches and losses for `lockstep.session.non_finite`."""

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from lockstep.torch.batch import RowBatch
from lockstep.torch.flat import FlatParameters

_PREFIXES = ("batch", "single")


class LossReader:
    """The `lockstep.session.non_finite.LossReader` of PyTorch.

    A batch is the tuple of the loss's arguments: one batch, and for offline Q-learning the same rows with single steps.

    Args:
        loss: returns the loss, its sums, and possibly more.
        flat: its gradient is overwritten.
    """

    def __init__(self, loss: Callable[..., tuple[Tensor, ...]], flat: FlatParameters) -> None:
        self._loss = loss
        self._flat = flat

    def arrays(self, batch: Sequence[RowBatch]) -> dict[str, np.ndarray]:
        """Columns on the host: `batch.*`, and `single.*` of the same rows with single steps."""
        return {
            f"{prefix}.{name}": tensor.detach().cpu().numpy()
            for prefix, part in zip(_PREFIXES, batch, strict=False)
            for name, tensor in part.columns().items()
        }

    def is_finite(self, batch: Sequence[RowBatch], first: int, count: int) -> bool:
        """Whether loss and gradient of these rows are finite."""
        self._flat.zero_gradient_()
        loss, sums, *_ = self._loss(*(part.rows(first, count) for part in batch))
        loss.backward()
        norm = cast(Tensor, torch.linalg.vector_norm(self._flat.gradient))
        return bool((sums.sum() + norm).isfinite())
