"""The gradient step of those who learn from logged data: several networks, one message, one optimizer step.

Shapes: K shards of this rank, P parameters.
"""

import copy
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from lockstep.torch.adam import Adam
from lockstep.torch.comm import Comm
from lockstep.torch.flat import FlatParameters
from lockstep.torch.metrics import Metrics
from lockstep.torch.sgd import Sgd
from lockstep.torch.warmup import warmup

EVERY_STEP = ("optim/grad_norm", "optim/skipped", "optim/learning_rate", "data/epoch")
MAX_FACTS = 16
"""Numbers that a caller may send along with a gradient, at most."""


class OfflineOptimizer:
    """All parameters of some networks, and how they change.

    The networks share no parameters, and each has a loss of its own: the gradient of the sum of the losses is the
    gradient of each for its own network.

    Args:
        run: the config.
        scores: the network whose gradient is clipped, and whose norm is told.
        beside: other networks, learned in the same step.
        comm: the ranks.
        num_sums: how many sums a step tells, the weight first.

    Attributes:
        flat: the parameters, those of `scores` first.
        learning_rate: of the next step.
        optimizer: Adam or plain descent over all of them.
        epoch: how often all rows were learned from when the next step begins.
    """

    def __init__(
        self, run: OfflineRun, scores: nn.Module, beside: Sequence[nn.Module], comm: Comm, num_sums: int
    ) -> None:
        c = run.algorithm
        self.config, self._epochs, self._comm, self._num_sums = c, run.epochs, comm, num_sums
        self.flat = FlatParameters(
            nn.ModuleList([scores, *beside]), len(comm.world.shards), num_sums=num_sums + MAX_FACTS
        )
        self._sizes = [sum(p.numel() for p in scores.parameters())]
        self._sizes += [self.flat.num_parameters - self._sizes[0]]
        self._clock = torch.tensor([c.learning_rate, 0.0], device=comm.device)
        self.learning_rate, self.epoch = self._clock[0], self._clock[1]  # views: both are told at once
        of = self.flat.values, self.flat.gradient, self.learning_rate
        self.optimizer = (
            Adam(*of, eps=c.adam_eps, l2_decay=c.l2_decay) if c.optimizer == "adam" else Sgd(*of, l2_decay=c.l2_decay)
        )
        self._nothing = torch.tensor([0.0] * (num_sums + 1) + [1.0], device=comm.device)
        self._ones = torch.ones(len(EVERY_STEP) - 1, device=comm.device)

    def schedule(self, progress: Progress) -> None:
        """Set the learning rate of the next step."""
        c, epochs = self.config, progress.env_steps * self._epochs / progress.total_steps
        self.epoch.fill_(epochs)
        if c.learning_rate_schedule == "linear":
            self.learning_rate.fill_(c.learning_rate * (1.0 - progress.fraction))
        elif c.learning_rate_schedule == "exponential":
            self.learning_rate.fill_(c.learning_rate * c.learning_rate_decay ** int(epochs))

    def keep(self, k: int, sums: Tensor, extra_sums: np.ndarray) -> None:
        """After the `backward()` of local shard number `k`: set aside its gradient, sums and `extra_sums`."""
        assert extra_sums.shape[1] <= MAX_FACTS, (
            f"{extra_sums.shape[1]} numbers do not fit into a message's {MAX_FACTS}"
        )
        statistics = torch.zeros(MAX_FACTS)
        statistics[: extra_sums.shape[1]] = torch.from_numpy(extra_sums[k])
        self.flat.keep(k, torch.cat([sums.detach(), statistics.to(sums.device)]))

    def step(self, learned: int | None = None) -> tuple[Tensor, np.ndarray, bool]:
        """Change the parameters once, by the mean gradient of all shards, unless a number of it is not finite.

        Args:
            learned: which of the sums is the weight that rows have in the loss of `scores`, if it is not the first.

        Returns:
            The sums over all shards, the norm, and whether the step was left out [num_sums + 2], of a step left out no
            more than that; what `keep` was given besides, summed [MAX_FACTS]; whether the step was left out.
        """
        sums = self._comm.average_gradients_(self.flat)
        sums, statistics = sums[: self._num_sums], sums[self._num_sums :]
        gradient, beside = cast("list[Tensor]", self.flat.gradient.split(self._sizes))
        if learned is not None:
            gradient.mul_(sums[0] / sums[learned].clamp(min=1.0))
        norm = cast(Tensor, torch.linalg.vector_norm(gradient))
        totals = torch.cat([sums, norm.reshape(1), self._nothing[:1]])
        # x - x is 0, but for a NaN or an infinity. The same on every rank, and no host waits for it.
        skipped = (totals - totals).any()
        if len(beside):
            skipped = skipped | ~torch.isfinite(beside.sum())
        if self.config.max_grad_norm is not None:
            gradient.mul_((self.config.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
        self.optimizer.step(skipped.float())
        # The one moment of a step in which the host waits for the device: a signal to stop rides on the facts.
        on_host = torch.cat([statistics, skipped.float().reshape(1)]).double().cpu().numpy()
        return torch.where(skipped, self._nothing, totals), on_host[:-1], bool(on_host[-1])

    def tell(self, metrics: Metrics, totals: Tensor) -> None:
        """Put what `step` told of the step itself into the table, by the names `EVERY_STEP`."""
        weight = torch.cat([1.0 - totals[-1:], self._ones])
        metrics.add(EVERY_STEP, torch.cat([totals[-2:], self._clock]), weight)

    def warmup(self, loss: Callable[[], tuple[Tensor, Tensor]]) -> Callable[[], object]:
        """A gradient step that sends nothing and changes nothing, as a function.

        Args:
            loss: computes the loss and its sums to tell.
        """

        def padded() -> tuple[Tensor, Tensor]:
            total, sums = loss()
            return total, torch.cat([sums, sums.new_zeros(MAX_FACTS)])

        return warmup(self.flat, self.optimizer, padded)

    def state(self) -> dict[str, Tensor]:
        """What must survive a restart and be equal on all ranks, but for the parameters."""
        named = {f"optimizer.{name}": tensor for name, tensor in self.optimizer.state().items()}
        return named | {"learning_rate": self.learning_rate}


class TargetNetworks:
    """Copies of networks whose parameters follow: x' += rate (x - x').

    Make them before the `OfflineOptimizer`, and `follow` what lies side by side there.

    Attributes:
        networks: the copies, in the given order.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self.networks = [copy.deepcopy(network).requires_grad_(False) for network in networks]

    def follow(self, descent: OfflineOptimizer, first: nn.Module | None = None) -> None:
        """Follow the parameters of `descent` from those of the network `first` on; default: from the first on."""
        parameters = [p for network in self.networks for p in network.parameters()]
        size = sum(p.numel() for p in parameters)
        start = 0 if first is None else next(first.parameters()).storage_offset()
        self._source = descent.flat.values.detach()[start : start + size]
        self._values = self._source.clone()
        vector_to_parameters(self._values, parameters)  # as views: one move for all of them

    def move(self, rate: float) -> None:
        """Go a part of the way."""
        self._values.lerp_(self._source, rate)

    def state(self) -> dict[str, Tensor]:
        """The parameters of the copies, as one."""
        return {"target": self._values}
