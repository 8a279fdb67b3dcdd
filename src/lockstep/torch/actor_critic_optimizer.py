"""One gradient step of an actor and its critics, for SAC and TD3: one message, two learning rates, one decision.

Shapes: K shards of this rank, S sums of a loss.
"""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from lockstep.algorithms.replay import VALUE_METRICS
from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.run import Run
from lockstep.torch.adam import Adam
from lockstep.torch.comm import Comm
from lockstep.torch.continuous_policy import ContinuousPolicy
from lockstep.torch.flat import FlatParameters, frozen_copy
from lockstep.torch.metrics import Metrics
from lockstep.torch.transitions import TransitionBatch
from lockstep.torch.warmup import warmup

Loss = Callable[[TransitionBatch, bool], tuple[Tensor, Tensor, Tensor]]


class ActorCriticOptimizer:
    """The parameters of a `ContinuousPolicy` as one flat tensor, their gradients, and Adam for its two parts.

    The flat tensor has the critics first, then the actor and, in SAC, the temperature.

    Args:
        run: the config, of SAC or TD3.
        policy: equal on all ranks; its parameters become views of the flat tensor.
        comm: the ranks.
        policy_sums: metrics of the policy's loss.

    Attributes:
        flat: all parameters and gradients.
        values: the parameters of the critics and of the actor, flat, without gradient.
        critic_values: the part of `values` that is the critics'.
        critics: the critics, with the same values, for a gradient with respect to actions alone.
        learning_rates: [2], of the policy and of the critics.
        dropout: draws the critics' dropout masks; None without dropout.
        skipped: what `step` returns for a skipped step.
    """

    def __init__(self, run: Run, policy: ContinuousPolicy, comm: Comm, policy_sums: Sequence[str]) -> None:
        config = run.algorithm
        assert isinstance(config, SACConfig | TD3Config)
        world, device = comm.world, comm.device
        self._config = config
        self._comm = comm
        self._policy_sums = policy_sums
        self._num_sums = 2 + len(VALUE_METRICS) + len(policy_sums)
        # The sums end with one slot per shard for its largest importance weight.
        self.flat = FlatParameters(policy, len(world.shards), num_sums=self._num_sums + world.num_shards)
        num_critic = sum(p.numel() for p in policy.critics.parameters())
        num_actor = sum(p.numel() for p in policy.actor.parameters())
        values, gradient = self.flat.values.detach(), self.flat.gradient
        self.values = values[: num_critic + num_actor]
        self.critic_values = values[:num_critic]
        self.critics = frozen_copy(policy.critics, self.critic_values)
        self.dropout = torch.Generator(device) if config.dropout > 0 else None
        self._critic_gradient = gradient[:num_critic]
        self._actor_gradient = gradient[num_critic : num_critic + num_actor]
        rates = [config.learning_rate, config.critic_learning_rate or config.learning_rate]
        self.learning_rates = torch.tensor(rates, device=device)
        self._initial_rates = self.learning_rates.clone()
        self.critic_adam = Adam(self.critic_values, self._critic_gradient, self.learning_rates[1], eps=config.adam_eps)
        self.policy_adam = Adam(values[num_critic:], gradient[num_critic:], self.learning_rates[0], eps=config.adam_eps)
        self._one_hot_shard = torch.eye(world.num_shards, device=device)[list(world.shards)]
        self._stop_on_non_finite = run.non_finite == "stop"
        self.halted = torch.zeros((), dtype=torch.bool, device=device)
        self.skipped = torch.tensor([0.0] * (self._num_sums + 2) + [1.0], device=device)

    def decay(self, fraction: float) -> None:
        """Set the learning rates for a run of which this fraction is completed."""
        if self._config.learning_rate_schedule == "linear":
            torch.mul(self._initial_rates, 1.0 - fraction, out=self.learning_rates)

    def step(
        self, loss: Loss, parts: Sequence[TransitionBatch], seeds: Sequence[int], *, moves_policy: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """Take a step with the mean gradient of all shards, skipped if any number is not finite; *collective*.

        Args:
            loss: of a shard's part and `moves_policy`: the *sum* over the rows [N], its sums [S], priorities [N].
            parts: of a minibatch, one for each local shard.
            seeds: of each part's dropout masks, if there is dropout.
            moves_policy: whether the policy moves too, or the critics alone.

        Returns:
            The sums over all shards [S], the norms of the critics' and the actor's gradient, and 1 if the step was
            skipped; all others are 0 then. And the priorities of each part.
        """
        priorities: list[Tensor] = []
        for k, part in enumerate(parts):
            if self.dropout is not None:
                self.dropout.manual_seed(seeds[k])
            self.flat.zero_gradient_()
            total, sums, priority = loss(part, moves_policy)
            total.backward()
            self.flat.store_shard(k, torch.cat([sums, self._one_hot_shard[k] * part.weight.max()]))
            priorities.append(priority)
        sums, largest_weights = self._comm.average_gradients_(self.flat).tensor_split([self._num_sums])
        if self._config.prioritized:
            scale = 1.0 / largest_weights.max()
            self._critic_gradient.mul_(scale)
            sums[1] *= scale
        norms = torch.stack([self._clip(self._critic_gradient), self._clip(self._actor_gradient)])
        totals = torch.cat([sums, norms, self.skipped[:1]])
        # x - x is 0 except for NaN and infinity. Equal on all ranks, and computed without a host sync.
        skipped = (totals - totals).any()
        if self._stop_on_non_finite:  # later steps are skipped too: the error reports the parameters of this one
            skipped = self.halted.logical_or_(skipped)
        self.critic_adam.step(skipped.float())
        if moves_policy:
            self.policy_adam.step(skipped.float())
        return torch.where(skipped, self.skipped, totals), priorities

    def warmup(self, loss: Loss, batch: TransitionBatch) -> Callable[[], object]:
        """Return a function that takes a gradient step on a batch, without messages or effects."""

        def total_and_sums() -> tuple[Tensor, Tensor]:
            total, sums, _ = loss(batch, True)
            return total, torch.cat([sums, sums.new_zeros(self._comm.world.num_shards)])

        return warmup(self.flat, [self.critic_adam, self.policy_adam], total_and_sums)

    def add_metrics(self, metrics: Metrics, totals: Tensor, due: int) -> None:
        """Add the sum of the results of `due` calls of `step` to the metrics."""
        count = 1 + len(VALUE_METRICS)
        of_critics, of_policy, norms, skipped = totals.tensor_split([count, self._num_sums, self._num_sums + 2])
        metrics.add(VALUE_METRICS, of_critics[1:], of_critics[0])
        metrics.add(self._policy_sums, of_policy[1:], of_policy[0])
        metrics.add(("optim/grad_norm",), norms[:1], due - skipped)
        metrics.add(("optim/policy_grad_norm",), norms[1:], of_policy[0] / self._config.batch_size)
        metrics.add(("optim/skipped",), skipped, due)
        metrics.add(("optim/learning_rate",), self.learning_rates[:1], 1.0)

    def state(self) -> dict[str, Tensor]:
        """State for checkpoints, equal on all ranks."""
        named = {f"critic_optimizer.{name}": tensor for name, tensor in self.critic_adam.state().items()}
        named |= {f"policy_optimizer.{name}": tensor for name, tensor in self.policy_adam.state().items()}
        return named | {"learning_rates": self.learning_rates}

    def _clip(self, gradient: Tensor) -> Tensor:
        """Clip a part of the gradient to `max_grad_norm`, in place; returns its norm before."""
        norm = cast(Tensor, torch.linalg.vector_norm(gradient))
        if self._config.max_grad_norm is not None:
            gradient.mul_((self._config.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
        return norm
