"""The gradient step of the algorithms on logged data: several networks, one message, one optimizer step.

Shapes: K shards of this rank, P parameters.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from lockstep.record.progress import Progress
from lockstep.run import OfflineRun
from lockstep.session.non_finite import locate_non_finite_offline
from lockstep.torch.adam import Adam
from lockstep.torch.batch import RowBatch
from lockstep.torch.capture import GradientStep
from lockstep.torch.comm import Comm
from lockstep.torch.flat import FlatParameters
from lockstep.torch.gradient import LossGradient
from lockstep.torch.metrics import Metrics
from lockstep.torch.non_finite import LossReader
from lockstep.torch.scoring.candidates import CandidateNetwork
from lockstep.torch.scoring.networks import OutcomeNetwork, ScoreNetwork
from lockstep.torch.sgd import Sgd
from lockstep.torch.transfer import to_device
from lockstep.torch.warmup import warmup_step

STEP_METRICS = ("optim/grad_norm", "optim/skipped", "optim/learning_rate", "data/epoch")
Loss = Callable[..., tuple[Tensor, Tensor]]
Scorer = ScoreNetwork | OutcomeNetwork | CandidateNetwork
Network = TypeVar("Network", bound=nn.Module)
MAX_CALLER_SUMS = 16
"""Numbers of the caller that fit into the message of a gradient step."""


class OfflineOptimizer:
    """All parameters of some networks, and one optimizer for them.

    The networks share no parameters, and each has its own loss: the gradient of the sum of the losses is the gradient
    of each loss for its own network.

    Args:
        run: the config.
        loss: returns the weighted *sum* of the losses over a shard's rows, and `num_sums` sums.
        scores: the network whose gradient is clipped, and whose gradient norm is logged.
        others: networks that are trained in the same step.
        comm: the ranks.
        num_sums: the number of sums that the loss returns; the first is the weight of the rows.

    Attributes:
        flat: the parameters, those of `scores` first.
        learning_rate: of the next step.
        optimizer: Adam or SGD over all parameters.
        epoch: the number of epochs before the next step.
        target_state: the parameters of the target networks that follow, if any, as one tensor by name.
    """

    def __init__(
        self,
        run: OfflineRun,
        loss: Loss,
        scores: nn.Module,
        others: Sequence[nn.Module],
        comm: Comm,
        num_sums: int,
    ) -> None:
        c = run.algorithm
        self._stop_on_non_finite = run.non_finite == "stop"
        self._loss = loss
        self.config, self._epochs, self._comm, self._num_sums = c, run.epochs, comm, num_sums
        self.flat = FlatParameters(
            nn.ModuleList([scores, *others]), len(comm.world.shards), num_sums=num_sums + MAX_CALLER_SUMS
        )
        self._backward = LossGradient(self.flat, loss, compiled=run.compile, dynamic=None, mode=run.compile_mode)
        num_scores = sum(p.numel() for p in scores.parameters())
        self._sizes = [num_scores, self.flat.num_parameters - num_scores]
        self._schedule = torch.tensor([c.learning_rate, 0.0], device=comm.device)
        self.learning_rate, self.epoch = self._schedule[0], self._schedule[1]  # views: logged as one tensor
        tensors = self.flat.params, self.flat.gradient, self.learning_rate
        if c.optimizer == "adam":
            self.optimizer = Adam(*tensors, eps=c.adam_eps, l2_decay=c.l2_decay)
        else:
            self.optimizer = Sgd(*tensors, l2_decay=c.l2_decay)
        self.target_state: dict[str, Tensor] = {}
        candidates = isinstance(scores, CandidateNetwork)
        self._gradient_step = GradientStep(
            run, comm, self.flat, self._accumulate_gradients, self._apply_gradient, candidates=candidates
        )
        # The result of a skipped step: zeros, then not_finite = 1.
        self._skipped_step = torch.tensor([0.0] * (num_sums + 1) + [1.0], device=comm.device)
        self._not_skipped = torch.zeros(1, device=comm.device)  # the end of the result of a step that is taken
        self._ones = torch.ones(len(STEP_METRICS) - 1, device=comm.device)

    def learn(
        self,
        batches: Sequence[Sequence[RowBatch]],
        caller_sums: np.ndarray,
        progress: Progress,
        *,
        score_weight_index: int | None = None,
        combine: Callable[[Tensor, Tensor], None] | None = None,
    ) -> tuple[Tensor, np.ndarray, bool]:
        """Change the parameters once by the mean gradient of all shards, unless it is not finite; *collective*.

        Args:
            batches: the arguments of the loss, for each local shard.
            caller_sums: [K, I] numbers of the caller, summed over all shards in the same message.
            progress: of the run, before this step.
            score_weight_index: index of the sum that is the rows' weight in the loss of `scores`; None: the first.
            combine: changes the mean gradient [P] in place, given the sums over all shards, before it is clipped.

        Returns:
            The sums over all shards, the gradient norm and whether the step was skipped [num_sums + 2] (all but the
            last are 0 if it was); the sums of `caller_sums` [I]; whether the step was skipped.

        Raises:
            NonFiniteError: on all ranks, if `non_finite` is `stop` and a number is not finite.
        """
        self._schedule_rate(progress)
        inputs = [*(batch for of_shard in batches for batch in of_shard), self._padded(caller_sums)]
        (sums, for_host), _ = self._gradient_step(inputs, score_weight_index, combine)
        # The only host sync of a step: the caller's sums carry the flag of a signal to stop.
        *padded, skipped = for_host.cpu().numpy()
        if skipped and self._stop_on_non_finite:
            reader = LossReader(self._loss, self.flat)
            raise locate_non_finite_offline(self._comm, batches, progress, reader)
        return sums, np.array(padded[: caller_sums.shape[1]]), bool(skipped)

    def _schedule_rate(self, progress: Progress) -> None:
        """Set the learning rate of the next step."""
        c, epochs = self.config, progress.env_steps * self._epochs / progress.total_steps
        rate = c.learning_rate
        self.epoch.fill_(epochs)
        if c.learning_rate_schedule == "linear":
            rate *= 1.0 - progress.fraction
        elif c.learning_rate_schedule == "exponential":
            rate *= c.learning_rate_decay ** int(epochs)
        self.learning_rate.fill_(rate)

    def _padded(self, caller_sums: np.ndarray) -> Tensor:
        """The numbers of the caller, on the device, in rows of MAX_CALLER_SUMS."""
        num_caller = caller_sums.shape[1]
        assert num_caller <= MAX_CALLER_SUMS, f"{num_caller} numbers do not fit into a message's {MAX_CALLER_SUMS}"
        padded = np.zeros((len(caller_sums), MAX_CALLER_SUMS), np.float32)
        padded[:, :num_caller] = caller_sums
        return to_device(padded, self._comm.device)

    def _accumulate_gradients(self, inputs: Sequence[RowBatch | Tensor], *_: object) -> None:
        """Compute the gradient and the sums of every local shard.

        Args:
            inputs: the arguments of the loss for each local shard, one shard after the other, and the result of
                `_padded`.
        """
        *batches, caller_sums = inputs
        count = len(batches) // len(self.flat.rows)
        for k in range(len(self.flat.rows)):
            self._backward(k, batches[k * count : (k + 1) * count], cast(Tensor, caller_sums)[k])

    def _apply_gradient(
        self,
        averaged: Sequence[Tensor],
        score_weight_index: int | None,
        combine: Callable[[Tensor, Tensor], None] | None,
    ) -> tuple[Tensor, Tensor]:
        """Clip the mean gradient and take the optimizer's step, given the sums over all shards.

        Returns:
            The first result of `learn`; all MAX_CALLER_SUMS sums of the caller, then whether the step was skipped.
        """
        sums, caller_sums = averaged[0].tensor_split([self._num_sums])
        if combine is not None:
            combine(self.flat.gradient, sums)
        gradient, other_gradient = cast("list[Tensor]", self.flat.gradient.split(self._sizes))
        if score_weight_index is not None:
            gradient.mul_(sums[0] / sums[score_weight_index].clamp(min=1.0))
        norm = cast(Tensor, torch.linalg.vector_norm(gradient))
        totals = torch.cat([sums, norm.reshape(1), self._not_skipped])
        # x - x is 0 unless x is NaN or infinite. The result is equal on every rank and needs no host sync.
        skipped = (totals - totals).any()
        if len(other_gradient):
            skipped = skipped | ~torch.isfinite(other_gradient.sum())
        if self.config.max_grad_norm is not None:
            factor = (self.config.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0)
            gradient.mul_(factor)
        self.optimizer.step(skipped.float())
        for_host = torch.cat([caller_sums, skipped.float().reshape(1)]).double()
        return torch.where(skipped, self._skipped_step, totals), for_host

    def add_metrics(self, metrics: Metrics, totals: Tensor) -> None:
        """Add `STEP_METRICS`, from the first result of `learn`."""
        weight = torch.cat([1.0 - totals[-1:], self._ones])
        metrics.add(STEP_METRICS, torch.cat([totals[-2:], self._schedule]), weight)

    def warmup_step(self, batch: Sequence[RowBatch]) -> Callable[[], object]:
        """Return a function that takes a gradient step on a batch, without messages or effects."""
        caller_sums = torch.zeros(MAX_CALLER_SUMS, device=self._comm.device)
        return warmup_step([self.optimizer], lambda: self._backward(0, batch, caller_sums))

    def state(self) -> dict[str, Tensor]:
        """The tensors beside the parameters that a checkpoint holds and that are equal on all ranks."""
        named = {f"optimizer.{name}": tensor for name, tensor in self.optimizer.state().items()}
        return named | self.target_state | {"learning_rate": self.learning_rate}


class TargetNetworks(Generic[Network]):
    """Target networks: copies whose parameters move by x' += rate (x - x').

    Create them before the `OfflineOptimizer`, which must hold the networks next to each other in the same order; then
    call `follow`.

    Attributes:
        networks: the copies, in the given order.
    """

    def __init__(self, networks: Sequence[Network]) -> None:
        self.networks = [copy.deepcopy(network).requires_grad_(False) for network in networks]

    def follow(self, optimizer: OfflineOptimizer, first: nn.Module | None = None) -> None:
        """Follow the optimizer's parameters, starting with those of the network `first`; default: with the first."""
        parameters = [p for network in self.networks for p in network.parameters()]
        size = sum(p.numel() for p in parameters)
        start = 0 if first is None else next(first.parameters()).storage_offset()
        self._source = optimizer.flat.params.detach()[start : start + size]
        self._params = self._source.clone()
        vector_to_parameters(self._params, parameters)  # views of one tensor: one operation moves all
        optimizer.target_state["target"] = self._params

    def move(self, rate: float) -> None:
        """Move the parameters: x' += rate (x - x')."""
        self._params.lerp_(self._source, rate)
