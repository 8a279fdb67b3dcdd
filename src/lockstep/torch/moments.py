"""The running moments of `lockstep.experience.normalize` on a device: frozen during a rollout.

Shapes: N rows, F numbers of a row.
"""

import numpy as np
import torch
from torch import Tensor

from lockstep.experience.normalize import EPS, RunningMoments
from lockstep.torch.transfer import to_device


class DeviceMoments:
    """Normalizes tensors with the moments of the host, as of the last `refresh`.

    Args:
        host: the moments.
        device: of the tensors.

    Attributes:
        is_empty: whether there are no moments yet, so that nothing is changed.
    """

    def __init__(self, host: RunningMoments, device: torch.device) -> None:
        self._host = host
        self._origin = torch.zeros(len(host.mean), dtype=torch.float64, device=device)
        self._mean, self._scale = (torch.zeros(len(host.mean), device=device) for _ in range(2))
        high = to_device(np.asarray(host.bounds, np.float32), device)
        self._bounds = -high, high
        self.refresh()

    def refresh(self) -> None:
        """Copy the host's moments to the device, into the same tensors; once per update."""
        self.is_empty = self._host.count == 0
        scale = (1.0 / np.sqrt(self._host.variance + EPS)).astype(np.float32)
        origin = np.concatenate([self._host.mean, self._host.mean.astype(np.float32), scale])
        for tensor, values in zip(
            (self._origin, self._mean, self._scale), to_device(origin, self._origin.device).chunk(3), strict=True
        ):
            tensor.copy_(values)

    def normalize(self, rows: Tensor) -> Tensor:
        """(x - mean) / standard deviation, within the host's `bounds`. Nothing changes before the first update."""
        if self.is_empty:
            return rows
        return ((rows - self._mean) * self._scale).clamp_(*self._bounds)

    def scale(self, rows: Tensor) -> Tensor:
        """Rows divided by the standard deviation, within the host's `limit`; for rewards, whose sign must stay."""
        return rows if self.is_empty else (rows * self._scale).clamp_(-self._host.limit, self._host.limit)

    def sums(self, rows: Tensor, weight: Tensor) -> Tensor:
        """`RunningMoments.sums` of rows [N, F] weighted by [N]: float64 [1 + 2 F]."""
        centred = rows.double() - self._origin
        weight = weight.double()
        return torch.cat([weight.sum().reshape(1), weight @ centred, weight @ centred.square()])
