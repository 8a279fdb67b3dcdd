"""Gradient descent on one flat tensor, by torch's fused kernel; same interface as `lockstep.torch.adam.Adam`."""

import torch
from torch import Tensor


class Sgd:
    """x -= lr (g + l2_decay x).

    Args:
        params: x, changed in place by `step`.
        gradient: g, read by `step`.
        learning_rate: lr, a 0-d tensor on the device.
        l2_decay: multiple of x that is added to g.
    """

    def __init__(self, params: Tensor, gradient: Tensor, learning_rate: Tensor, *, l2_decay: float = 0.0) -> None:
        self._params = params.detach()
        self._gradient = gradient
        self._learning_rate = learning_rate
        self._l2_decay = l2_decay
        self.steps = torch.zeros((), device=params.device)

    def step(self, skipped: Tensor | None = None) -> None:
        """Change the parameters once, unless `skipped` (0-d float32 tensor on the device) is 1."""
        torch._fused_sgd_(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
            [self._params], [self._gradient], [],
            weight_decay=self._l2_decay, momentum=0.0, lr=self._learning_rate, dampening=0.0,
            nesterov=False, maximize=False, is_first_step=True, found_inf=skipped,
        )  # fmt: skip
        self.steps += 1
        if skipped is not None:
            self.steps -= skipped

    def state(self) -> dict[str, Tensor]:
        """State for checkpoints, equal on all ranks."""
        return {"steps": self.steps}
