"""Plain gradient descent on one flat tensor, by torch's own fused kernel; the manners are those of `Adam`."""

import torch
from torch import Tensor


class Sgd:
    """x -= lr (g + l2_decay x).

    Args:
        values: x, changed in place by `step`.
        gradient: g, read by `step`.
        learning_rate: lr, a tensor of no dimensions on the device.
        l2_decay: part of x that is added to g.
    """

    def __init__(self, values: Tensor, gradient: Tensor, learning_rate: Tensor, *, l2_decay: float = 0.0) -> None:
        self._values, self._gradient = values.detach(), gradient
        self._learning_rate, self._l2_decay = learning_rate, l2_decay
        self.steps = torch.zeros((), device=values.device)

    def step(self, skipped: Tensor | None = None) -> None:
        """Change the values once, unless `skipped` (a float32 tensor of no dimensions, on the device) is 1."""
        torch._fused_sgd_(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
            [self._values], [self._gradient], [],
            weight_decay=self._l2_decay, momentum=0.0, lr=self._learning_rate, dampening=0.0,
            nesterov=False, maximize=False, is_first_step=True, found_inf=skipped,
        )  # fmt: skip
        self.steps += 1
        if skipped is not None:
            self.steps -= skipped

    def state(self) -> dict[str, Tensor]:
        """Everything that must survive a restart and be equal on all ranks."""
        return {"steps": self.steps}
