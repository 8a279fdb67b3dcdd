"""Adam on one flat tensor, by torch's fused kernel.

The result equals `torch.optim.Adam(fused=True)` bit for bit. Its constructor imports torch's compiler, which nearly
doubles the time to the first update, and its `step` takes several times as long as the kernel for a small network.
"""

import torch
from torch import Tensor

from lockstep.algorithms.ppo import ADAPTIVE_RATES


class Adam:
    """Adaptive moments (Kingma and Ba, 2015, arXiv:1412.6980).

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  x -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    Args:
        params: x, changed in place by `step`.
        gradient: g, read by `step`.
        learning_rate: lr, a 0-d tensor on the device, so that changing it needs no host sync.
        eps: eps.
        betas: b1 and b2.
        l2_decay: multiple of x that is added to g.
    """

    def __init__(
        self,
        params: Tensor,
        gradient: Tensor,
        learning_rate: Tensor,
        *,
        eps: float = 1e-8,
        betas: tuple[float, float] = (0.9, 0.999),
        l2_decay: float = 0.0,
    ) -> None:
        self._params = params.detach()
        self._gradient = gradient
        self._learning_rate = learning_rate
        self._eps = eps
        self._betas = betas
        self._l2_decay = l2_decay
        self.moment = torch.zeros_like(self._params)
        self.square = torch.zeros_like(self._params)
        self.steps = torch.zeros((), device=params.device)

    def step(self, skipped: Tensor | None = None) -> None:
        """Change the parameters once.

        Args:
            skipped: 0-d float32 tensor on the device. If it is 1, neither parameters nor moments nor the count of steps
                change, whatever the gradient.
        """
        self.steps += 1
        torch._fused_adam_(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
            [self._params], [self._gradient], [self.moment], [self.square], [], [self.steps],
            lr=self._learning_rate, beta1=self._betas[0], beta2=self._betas[1], eps=self._eps,
            weight_decay=self._l2_decay, amsgrad=False, maximize=False, found_inf=skipped,
        )  # fmt: skip
        if skipped is not None:
            self.steps -= skipped

    def state(self) -> dict[str, Tensor]:
        """State for checkpoints, equal on all ranks."""
        return {"moment": self.moment, "square": self.square, "steps": self.steps}


def adapted(learning_rate: Tensor, kl: Tensor, desired_kl: float) -> Tensor:
    """The learning rate divided by 1.5 if KL > 2 `desired_kl`, multiplied by 1.5 if KL < `desired_kl` / 2.

    The result lies in `ADAPTIVE_RATES`, also where the KL changes nothing.
    """
    factor = torch.where(kl > 2.0 * desired_kl, 1 / 1.5, torch.where(kl < 0.5 * desired_kl, 1.5, 1.0))
    return (learning_rate * factor).clamp(*ADAPTIVE_RATES)
