"""The base of SAC and TD3: replay buffers, one gradient step with one message, and state for checkpoints.

Shapes: N transitions of a shard's part of a minibatch, S sums of a loss.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.algorithms.interface import ALL_SETTINGS
from lockstep.algorithms.replay import VALUE_METRICS
from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.experience.replay import Transitions
from lockstep.experience.rollout import Rollout
from lockstep.record.progress import Progress
from lockstep.run import Run
from lockstep.session.non_finite import NonFiniteError, locate_non_finite_replayed
from lockstep.session.shard_replays import Replayed, ShardReplays
from lockstep.session.task_checks import check_task
from lockstep.torch.adam import Adam
from lockstep.torch.capture import GradientStep
from lockstep.torch.comm import Comm
from lockstep.torch.continuous_policy import ContinuousPolicy
from lockstep.torch.device_rows import observation_storage
from lockstep.torch.flat import FlatParameters, frozen_copy
from lockstep.torch.gradient import LossGradient
from lockstep.torch.metrics import Metrics
from lockstep.torch.non_finite import LossReader
from lockstep.torch.transfer import CopyStream, to_device
from lockstep.torch.transitions import TransitionBatch, priorities_to_host
from lockstep.torch.warmup import warmup_step

SomeConfig = TypeVar("SomeConfig", bound=SACConfig | TD3Config)
SomeTarget = TypeVar("SomeTarget", bound=nn.Module)


class ActorCritic(ABC, Generic[SomeConfig, SomeTarget]):
    """A policy and its critics, which learn from replay buffers; a subclass has the losses and the order of an update.

    State across updates: `policy`, `evaluated`, `target`, the two optimizers, each shard's replay buffer and random
    stream, and `counters`, as in DQN.

    Args:
        run: the config.
        policy: the parameters of rank 0 are broadcast. They become views of a flat tensor: the critics first, then the
            actor and, in SAC, the temperature.
        comm: the ranks.
        metrics: names.
        actor_metrics: names of the sums of the actor's loss.
        num_actions: actions to draw for a transition, which needs noise for them.

    Attributes:
        evaluated: the policy that is evaluated and saved: with `policy_average` its actor is an average, else `policy`.
        flat: all parameters and gradients.
        replays: the buffers of each local shard, and the number of gradient steps.
        params: the parameters of the critics and of the actor, flat, without gradient.
        critic_params: the part of `params` that is the critics'.
        actor_params: the part of `params` that is the actor's.
        average_params: of the actor of `evaluated`.
        frozen_critics: the critics, with the same parameters, for a gradient with respect to actions alone.
        target: the target networks.
        dropout: draws the critics' dropout masks; None without dropout.
        learning_rates: [2], of the actor and of the critics.
    """

    FOLLOWS = ALL_SETTINGS

    target: SomeTarget

    def __init__(
        self,
        run: Run,
        policy: ContinuousPolicy,
        comm: Comm,
        metrics: Sequence[str],
        actor_metrics: Sequence[str],
        num_actions: int,
    ) -> None:
        check_task(run, policy.spec)
        world, device = comm.world, comm.device
        self.config = config = cast(SomeConfig, run.algorithm)
        self.policy = policy
        self.comm = comm
        self._actor_metrics = actor_metrics
        self._num_sums = 2 + len(VALUE_METRICS) + len(actor_metrics)
        self._num_actions = num_actions
        self.storage = observation_storage(run, policy.spec, comm)
        self.replays = ShardReplays(run, policy.spec, comm, self.storage)
        self._copies = CopyStream(device)
        self.rows = self.replays.rows
        self.shard_state = self.replays.shard_state
        self.restore_shard = self.replays.restore_shard
        self.counters = torch.from_numpy(self.replays.counters)
        self.metrics = Metrics(metrics, device)
        comm.broadcast_(policy)
        # The sums end with one slot per shard for its largest importance weight.
        self.flat = FlatParameters(policy, len(world.shards), num_sums=self._num_sums + world.num_shards)
        num_critic = sum(p.numel() for p in policy.critics.parameters())
        num_actor = sum(p.numel() for p in policy.actor.parameters())
        params, gradient = self.flat.params.detach(), self.flat.gradient
        self.params = params[: num_critic + num_actor]
        self.critic_params = params[:num_critic]
        self.frozen_critics = frozen_copy(policy.critics, self.critic_params)
        self.actor_params = self.params[num_critic:]
        self.evaluated, self.average_params = self._first_average()
        self.dropout = torch.Generator(device) if config.dropout > 0 else None
        self._critic_gradient = gradient[:num_critic]
        self._actor_gradient = gradient[num_critic : num_critic + num_actor]
        rates = [config.learning_rate, config.critic_learning_rate or config.learning_rate]
        self.learning_rates = torch.tensor(rates, device=device)
        self._initial_rates = self.learning_rates.clone()
        self.critic_adam = Adam(self.critic_params, self._critic_gradient, self.learning_rates[1], eps=config.adam_eps)
        self.actor_adam = Adam(params[num_critic:], gradient[num_critic:], self.learning_rates[0], eps=config.adam_eps)
        self._one_hot_shard = torch.eye(world.num_shards, device=device)[list(world.shards)]
        count = config.target_critics
        self._target_critics = slice(None) if count is None else torch.zeros(count, dtype=torch.int64, device=device)
        self._stop_on_non_finite = run.non_finite == "stop"
        self._non_finite = torch.zeros((), dtype=torch.bool, device=device)
        # The result of a skipped step: zeros, then not_finite = 1.
        self._skipped_step = torch.tensor([0.0] * (self._num_sums + 2) + [1.0], device=device)
        self._not_skipped = torch.zeros(1, device=device)  # the end of the result of a step that is taken
        bfloat16 = run.precision == "bfloat16"
        self._precision = torch.autocast(device.type, torch.bfloat16) if bfloat16 else contextlib.nullcontext()
        # torch.compile splits the step at every mask that a generator draws, which is slower than without it.
        compiled = run.compile and self.dropout is None
        self._backward = LossGradient(self.flat, self.loss, compiled=compiled, dynamic=False, mode=run.compile_mode)
        self._gradient_step = GradientStep(run, comm, self.flat, self._accumulate_gradients, self._apply_gradient)

    def _first_average(self) -> tuple[ContinuousPolicy, Tensor]:
        """The policy that is evaluated, before the first step, and the parameters of its actor."""
        if not self.config.policy_average:
            return self.policy, self.actor_params
        params = self.actor_params.clone()
        return self.policy.with_actor(frozen_copy(self.policy.actor, params)), params

    @abstractmethod
    def critic_loss(self, batch: TransitionBatch) -> tuple[Tensor, Tensor, Tensor]:
        """The critics' loss as a weighted *sum* over rows [N]; row count and metric sums; priorities [N]."""

    @abstractmethod
    def actor_loss(self, batch: TransitionBatch) -> tuple[Tensor, Tensor]:
        """The actor's loss as a *sum* over rows [N]; row count and metric sums."""

    def loss(self, batch: TransitionBatch, updates_actor: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Both losses, each with a gradient with respect to its own parameters only.

        Args:
            batch: transitions of one shard, with the noise of the actions that are drawn for them.
            updates_actor: whether to compute the actor's loss; its sums are 0 otherwise.

        Returns:
            The *sum* of the losses over the rows [N]; the sums of the critics and of the actor; priorities [N].
        """
        loss, sums, priority = self.critic_loss(batch)
        if not updates_actor:
            return loss, torch.cat([sums, sums.new_zeros(1 + len(self._actor_metrics))]), priority
        actor_loss, actor_sums = self.actor_loss(batch)
        return loss + actor_loss, torch.cat([sums, actor_sums]), priority

    def _set_learning_rates(self, fraction: float) -> None:
        """Set the learning rates for a run of which this fraction is completed."""
        remaining = 1.0 - fraction if self.config.learning_rate_schedule == "linear" else 1.0
        torch.mul(self._initial_rates, remaining, out=self.learning_rates)

    def _parts(self, drawn: Sequence[Transitions], weights: Sequence[np.ndarray]) -> list[TransitionBatch]:
        """Each shard's part of a minibatch on the device, with the noise of its actions."""
        noise = self.replays.noise(self._num_actions, self.policy.spec.action.width)
        return [TransitionBatch.of(d, w, self._copies, e) for d, w, e in zip(drawn, weights, noise, strict=True)]

    def _step(self, parts: Sequence[TransitionBatch], drawn: Sequence[Transitions]) -> Tensor:
        """One gradient step on every shard's part [N] of a minibatch, skipped on all ranks if any number is not finite.

        Returns:
            The sums over all shards [S], the norms of the critics' and the actor's gradient, and 1 if the step was
            skipped; all others are 0 then.
        """
        c = self.config
        number = self.replays.gradient_steps + 1  # of this step, counted from 1
        updates_actor = number % c.policy_delay == 0
        if c.target_critics is not None:
            chosen = self.replays.target_critics(c.num_critics, c.target_critics)
            assert isinstance(self._target_critics, Tensor)
            self._target_critics.copy_(to_device(chosen, self.comm.device))
        seeds = self.replays.seeds() if self.dropout is not None else []
        totals, priorities = self._gradient_step(parts, updates_actor, *seeds)
        self.replays.gradient_steps += 1
        if c.prioritized:
            on_host = priorities_to_host(totals[-1], priorities)
            if on_host is not None:
                self.replays.update_priorities(drawn, on_host)
        return totals

    def _accumulate_gradients(self, parts: Sequence[TransitionBatch], updates_actor: bool, *seeds: int) -> list[Tensor]:
        """Compute the gradient and the sums of every shard's part of a minibatch; returns the priorities of each.

        Args:
            parts: of a minibatch, one for each local shard.
            updates_actor: whether the actor takes a step too, or the critics alone.
            seeds: of each part's dropout masks, if there is dropout.
        """
        priorities: list[Tensor] = []
        for k, part in enumerate(parts):
            if self.dropout is not None:
                self.dropout.manual_seed(seeds[k])
            priorities += self._backward(k, [part, updates_actor], self._one_hot_shard[k] * part.weight.max())
        return priorities

    def _apply_gradient(self, averaged: Sequence[Tensor], updates_actor: bool, *_: int) -> Tensor:
        """Clip the mean gradient and take the optimizers' steps, given the sums over all shards; returns as `_step`."""
        sums, largest_weights = averaged[0].tensor_split([self._num_sums])
        if self.config.prioritized:
            scale = 1.0 / largest_weights.max()
            self._critic_gradient.mul_(scale)
            sums[1] *= scale
        norms = torch.stack([self._clip(self._critic_gradient), self._clip(self._actor_gradient)])
        totals = torch.cat([sums, norms, self._not_skipped])
        # x - x is 0 except for NaN and infinity. Equal on all ranks, and computed without a host sync.
        skipped = (totals - totals).any()
        if self._stop_on_non_finite:  # later steps are skipped too: the error reports the parameters of this one
            skipped = self._non_finite.logical_or_(skipped)
        self.critic_adam.step(skipped.float())
        if updates_actor:
            self.actor_adam.step(skipped.float())
            self._update_average()
        return torch.where(skipped, self._skipped_step, totals)

    def _update_average(self) -> None:
        """Move the average by 1 / (1 + w (t - 1)) towards the actor after its step t, w being `policy_average`."""
        if self.config.policy_average:
            weight = (self.config.policy_average * (self.actor_adam.steps - 1.0).relu() + 1.0).reciprocal()
            self.average_params.lerp_(self.actor_params, weight)

    def _clip(self, gradient: Tensor) -> Tensor:
        """Clip a part of the gradient to `max_grad_norm`, in place; returns its norm before."""
        norm = cast(Tensor, torch.linalg.vector_norm(gradient))
        if self.config.max_grad_norm is not None:
            gradient.mul_((self.config.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
        return norm

    def _non_finite_error(
        self, rollouts: list[Rollout], minibatches: Sequence[Sequence[TransitionBatch]], progress: Progress
    ) -> NonFiniteError:
        reader = LossReader(self.loss, self.flat)
        batches = [[(part,) for part in parts] for parts in minibatches]
        return locate_non_finite_replayed(self.comm, rollouts, batches, progress, reader)

    def _add_metrics(self, replayed: Replayed, totals: Tensor) -> None:
        """Add the metrics of an update, from the sum of the results of its steps."""
        statistics = np.array([replayed.size, replayed.skipped])
        self.metrics.add(("replay/size", "replay/skipped"), to_device(statistics, self.comm.device), 1.0)
        if not replayed.num_gradient_steps:
            return
        count = 1 + len(VALUE_METRICS)
        ends = [count, self._num_sums, self._num_sums + 2]
        of_critics, of_actor, norm_sums, num_skipped = totals.tensor_split(ends)
        num_actor_steps = of_actor[0] / self.config.batch_size  # its rows are counted only in steps that it took
        self.metrics.add(VALUE_METRICS, of_critics[1:], of_critics[0])
        self.metrics.add(self._actor_metrics, of_actor[1:], of_actor[0])
        self.metrics.add(("optim/grad_norm",), norm_sums[:1], replayed.num_gradient_steps - num_skipped)
        self.metrics.add(("optim/policy_grad_norm",), norm_sums[1:], num_actor_steps)
        self.metrics.add(("optim/skipped",), num_skipped, replayed.num_gradient_steps)
        self.metrics.add(("optim/learning_rate",), self.learning_rates[:1], 1.0)

    def compile_steps(self) -> None:
        """Compile each kind of gradient step before the clocks start: also that of the critics alone, if there is."""
        for updates_actor in (True,) if self.config.policy_delay == 1 else (True, False):
            self.warmup_step(self.rows, updates_actor)()

    def warmup_step(self, rows: int, updates_actor: bool = True) -> Callable[[], object]:
        """Return a function that takes a gradient step on `rows` rows of zeros, without messages or effects."""
        batch = TransitionBatch.blank(self.policy.spec, rows, self.comm.device, self._num_actions)
        weights = torch.zeros_like(self._one_hot_shard[0])
        adams = [self.critic_adam, self.actor_adam]
        return warmup_step(adams, lambda: self._backward(0, [batch, updates_actor], weights))

    def shared_tensors(self) -> dict[str, Tensor]:
        """State that is equal on all ranks, by name; a resumed run writes into these tensors."""
        named = {f"policy.{name}": tensor for name, tensor in self.evaluated.state_dict().items()}
        if self.evaluated is not self.policy:
            named |= {f"learned.actor.{name}": tensor for name, tensor in self.policy.actor.state_dict().items()}
        named |= {f"target.{name}": tensor for name, tensor in self.target.state_dict().items()}
        named |= {f"critic_optimizer.{name}": tensor for name, tensor in self.critic_adam.state().items()}
        named |= {f"policy_optimizer.{name}": tensor for name, tensor in self.actor_adam.state().items()}
        totals = {"counters": self.counters, "metrics": self.metrics.table}
        return named | {"learning_rates": self.learning_rates} | totals
