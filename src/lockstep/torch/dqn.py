"""Deep Q-learning (Mnih et al., 2015) with its standard improvements (Hessel et al., 2018, arXiv:1710.02298).

Shapes: K shards of this rank, N transitions of a shard's part of a minibatch, M numbers of the caller.
"""

import copy
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import vector_to_parameters

from lockstep.algorithms.dqn import METRICS, DQNConfig
from lockstep.algorithms.interface import ALL_SETTINGS
from lockstep.algorithms.replay import VALUE_METRICS
from lockstep.distributed.timers import LEARN, OTHER
from lockstep.experience.exploration import EpsilonGreedy, NoisyActor, epsilon
from lockstep.experience.replay import Transitions
from lockstep.experience.rollout import Rollout
from lockstep.record.progress import Progress
from lockstep.run import Run
from lockstep.session.kept_minibatches import KeptMinibatches
from lockstep.session.non_finite import NonFiniteError, locate_non_finite_replayed
from lockstep.session.shard_replays import ShardReplays, announce_replay
from lockstep.session.support_watch import watch_support
from lockstep.torch import value_losses as losses
from lockstep.torch.adam import Adam
from lockstep.torch.capture import GradientStep, announce_capture, capture_acting
from lockstep.torch.comm import Comm
from lockstep.torch.device_rows import observation_storage
from lockstep.torch.flat import FlatParameters
from lockstep.torch.gradient import LossGradient, in_training
from lockstep.torch.metrics import Metrics
from lockstep.torch.networks import actor_of
from lockstep.torch.non_finite import LossReader
from lockstep.torch.q_networks import QPolicy, noisy_actor
from lockstep.torch.session import Session
from lockstep.torch.transfer import CopyStream, to_device
from lockstep.torch.transitions import TransitionBatch, priorities_to_host
from lockstep.torch.warmup import warmup_step
from lockstep.world import block, stream, stream_seed


class DQN:
    """Q-learning from a replay buffer, with a target network.

    State across updates: `policy`, `target`, `optimizer`, each shard's replay buffer and random stream, and
    `counters`: gradient steps taken, environment step from which learning may begin, pending fraction of a gradient
    step.
    """

    FOLLOWS = ALL_SETTINGS

    def __init__(self, run: Run, policy: QPolicy, comm: Comm) -> None:
        config = run.algorithm
        world = comm.world
        assert isinstance(config, DQNConfig)
        self.config = config
        self.policy = policy
        self.comm = comm
        self._seed = run.seed
        self.storage = observation_storage(run, policy.spec, comm)
        self.replays = ShardReplays(run, policy.spec, comm, self.storage)
        self._copies = CopyStream(comm.device)
        self.rows = self.replays.rows
        self.shard_state = self.replays.shard_state
        self.restore_shard = self.replays.restore_shard
        comm.broadcast_(policy)
        self.target = copy.deepcopy(policy)
        target_parameters = [
            t for p, t in zip(policy.parameters(), self.target.parameters(), strict=True) if p.requires_grad
        ]
        # The sums of a gradient step end with one slot per shard for its largest importance weight.
        self.flat = FlatParameters(policy, len(world.shards), num_sums=1 + len(VALUE_METRICS) + world.num_shards)
        self._target_params = self.flat.params.detach().clone()
        vector_to_parameters(self._target_params, target_parameters)  # as views: one copy updates all of them
        self.target.requires_grad_(False)
        # Noisy double Q-learning draws separate noise to select the next action: a second module, same tensors.
        shared = {id(tensor): tensor for tensor in (*policy.parameters(), *policy.buffers())}
        self._selector = copy.deepcopy(policy, shared) if config.noisy and config.double else policy
        self._one_hot_shard = torch.eye(world.num_shards, device=comm.device)[list(world.shards)]
        self.learning_rate = torch.tensor(config.learning_rate, device=comm.device)
        self.optimizer = Adam(self.flat.params, self.flat.gradient, self.learning_rate, eps=config.adam_eps)
        self.counters = torch.from_numpy(self.replays.counters)
        self.metrics = Metrics(METRICS, comm.device)
        self._stop_on_non_finite = run.non_finite == "stop"
        self._non_finite = torch.zeros((), dtype=torch.bool, device=comm.device)
        # The result of a skipped step: zeros, then not_finite = 1.
        self._skipped_step = torch.tensor([0.0] * (1 + len(VALUE_METRICS)) + [0.0, 1.0], device=comm.device)
        self._not_skipped = torch.zeros(1, device=comm.device)  # the end of the result of a step that is taken
        self._precision = torch.autocast(comm.device.type, torch.bfloat16, enabled=run.precision == "bfloat16")
        self._backward = LossGradient(
            self.flat, self.loss, compiled=run.compile, dynamic=False, mode=run.compile_mode, network=policy.network
        )
        self._gradient_step = GradientStep(run, comm, self.flat, self._accumulate_gradients, self._apply_gradient)

    def update(self, rollouts: list[Rollout], caller_sums: np.ndarray, progress: Progress | None = None) -> np.ndarray:
        """Add a rollout of every local shard to its replay buffer, and take the due gradient steps; *collective*.

        Args:
            rollouts: one for each local shard.
            caller_sums: [K, M] numbers of the caller, summed over all shards in the same message.
            progress: counters before this rollout; default: start of the run.

        Returns:
            The sums of `caller_sums` [M].

        Raises:
            NonFiniteError: on all ranks, if `non_finite` is `stop` and a number is not finite.
        """
        c = self.config
        progress = progress or Progress(1)
        replayed, caller_sums = self.replays.extend(rollouts, caller_sums, progress)
        if replayed.skipped and self._stop_on_non_finite:
            raise self._non_finite_error(rollouts, [], progress)
        remaining = 1.0 - progress.fraction if c.learning_rate_schedule == "linear" else 1.0
        self.learning_rate.fill_(c.learning_rate * remaining)
        sums = torch.zeros_like(self._skipped_step)
        kept = KeptMinibatches[TransitionBatch](lambda: bool(self._non_finite), enabled=self._stop_on_non_finite)
        for drawn, weights in self.replays.minibatches(replayed):
            parts = [TransitionBatch.of(*pair, self._copies) for pair in zip(drawn, weights, strict=True)]
            sums += self._step(parts, drawn)
            kept.add(parts)
        # One host sync per rollout; the next rollout would wait for the device anyway.
        if replayed.num_gradient_steps and self._stop_on_non_finite and bool(self._non_finite):
            raise self._non_finite_error(rollouts, kept.minibatches, progress)
        self.policy.disable_noise()  # for evaluations and policy files
        statistics = [epsilon(c, progress.env_steps), replayed.size, replayed.skipped]
        names = ("exploration/epsilon", "replay/size", "replay/skipped")
        self.metrics.add(names, to_device(np.array(statistics), self.comm.device), 1.0)
        if replayed.num_gradient_steps:
            num_rows, value_sums, norm_sum, num_skipped = torch.split(sums, [1, len(VALUE_METRICS), 1, 1])
            self.metrics.add(VALUE_METRICS, value_sums, num_rows)
            self.metrics.add(("optim/grad_norm",), norm_sum, replayed.num_gradient_steps - num_skipped)
            self.metrics.add(("optim/skipped",), num_skipped, replayed.num_gradient_steps)
            self.metrics.add(("optim/learning_rate",), self.learning_rate.reshape(1), 1.0)
        return caller_sums

    def _step(self, parts: Sequence[TransitionBatch], drawn: Sequence[Transitions]) -> Tensor:
        """One gradient step on every shard's part [N] of a minibatch, skipped on all ranks if any number is not finite.

        Returns:
            Rows, sums, norm, and 1 if the step was skipped; all but the last are 0 then.
        """
        c = self.config
        totals, priorities = self._gradient_step([*parts, *self._draw_noise()])
        self.replays.gradient_steps += 1
        if c.target_rate is not None:
            self._move_target(c.target_rate)
        elif not self.replays.gradient_steps % c.target_update_every:
            self.copy_to_target()
        if c.prioritized:
            on_host = priorities_to_host(totals[-1], priorities)
            if on_host is not None:
                self.replays.update_priorities(drawn, on_host)
        return totals

    def _accumulate_gradients(self, inputs: Sequence[TransitionBatch | Tensor]) -> list[Tensor]:
        """Compute the gradient and the sums of every shard's part of a minibatch; returns the priorities of each.

        Args:
            inputs: the parts, then the result of `_draw_noise`.
        """
        parts = cast("Sequence[TransitionBatch]", inputs[: len(self.flat.rows)])
        self._set_noise(cast("Sequence[Tensor]", inputs[len(parts) :]))
        priorities: list[Tensor] = []
        for k, part in enumerate(parts):
            priorities += self._backward(k, [part], self._one_hot_shard[k] * part.weight.max())
        return priorities

    def _apply_gradient(self, averaged: Sequence[Tensor]) -> Tensor:
        """Clip the mean gradient and take the optimizer's step, given the sums over all shards; returns as `_step`."""
        c = self.config
        sums, largest_weights = averaged[0].tensor_split([1 + len(VALUE_METRICS)])
        scale = 1.0 / largest_weights.max()
        gradient = self.flat.gradient
        norm = cast(Tensor, torch.linalg.vector_norm(gradient)) * scale
        if c.max_grad_norm is not None:
            gradient.mul_(scale * (c.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
        elif c.prioritized:
            gradient.mul_(scale)
        totals = torch.cat([sums[:1], sums[1:2] * scale, sums[2:], norm.reshape(1), self._not_skipped])
        # x - x is 0 except for NaN and infinity. Equal on all ranks, and computed without a host sync.
        skipped = (totals - totals).any()
        if self._stop_on_non_finite:  # later steps are skipped too: the error reports the parameters of this one
            skipped = self._non_finite.logical_or_(skipped)
        self.optimizer.step(skipped.float())
        return torch.where(skipped, self._skipped_step, totals)

    def loss(self, batch: TransitionBatch) -> tuple[Tensor, Tensor, Tensor]:
        """The temporal-difference loss.

        y = R + discount Q'(s', argmax_a Q(s', a)) with `double`, else R + discount max_a Q'(s', a)
        L = w l(y - Q(s, a)), or w times the loss between the two distributions of the return

        Returns:
            The *sum* of L over the rows [N]; sums of the metrics, the number of rows first; priorities [N].
        """
        c = self.config
        policy = self.policy
        with self._precision:
            outputs = losses.gather_actions(policy.outputs(batch.observation), batch.action).float()
            with torch.no_grad():
                next_outputs = self.target.outputs(batch.next_observation)
                selector = self._selector.outputs(batch.next_observation) if c.double else next_outputs
                next_action = policy.expected(selector).argmax(-1)
                next_outputs = losses.gather_actions(next_outputs, next_action).float()
        if c.value_distribution == "categorical":
            support = policy.support
            next_probability = policy.probability(next_outputs)
            projected = losses.categorical_projection(next_probability, batch.reward, batch.discount, support)
            row_loss = losses.cross_entropy(outputs, projected)
            q = (policy.probability(outputs) * support).sum(-1)
            y = (projected * support).sum(-1)
        elif c.value_distribution == "quantile":
            quantiles = losses.td_target(batch.reward, batch.discount, next_outputs)
            row_loss = losses.quantile_huber(outputs, quantiles)
            q, y = outputs.mean(-1), quantiles.mean(-1)
        else:
            q, y = outputs, losses.td_target(batch.reward, batch.discount, next_outputs)
            row_loss = (losses.huber if c.loss == "huber" else losses.squared)(y - q)
        with torch.no_grad():
            error = (y - q).abs()
            sums = torch.stack([torch.ones_like(q), batch.weight * row_loss, q, y, error]).sum(1)
        priority = error if c.value_distribution == "none" else row_loss.detach()
        return torch.dot(batch.weight, row_loss), sums, priority

    def _non_finite_error(
        self, rollouts: list[Rollout], minibatches: Sequence[Sequence[TransitionBatch]], progress: Progress
    ) -> NonFiniteError:
        reader = LossReader(self.loss, self.flat)
        batches = [[(part,) for part in parts] for parts in minibatches]
        with in_training(self.policy.network):
            return locate_non_finite_replayed(self.comm, rollouts, batches, progress, reader)

    def warmup_step(self, rows: int) -> Callable[[], object]:
        """Return a function that takes a gradient step on `rows` rows of zeros, without messages or effects."""
        batch = TransitionBatch.blank(self.policy.spec, rows, self.comm.device)

        def accumulate() -> None:
            self._set_noise(self._draw_noise())
            self._backward(0, [batch], self._one_hot_shard[0])
            self.policy.disable_noise()

        return warmup_step([self.optimizer], accumulate)

    def copy_to_target(self) -> None:
        """Make the target network equal to the online network, with its frozen parameters."""
        self._move_target(1.0)
        for mine, other in zip(self.target.parameters(), self.policy.parameters(), strict=True):
            if not other.requires_grad:
                mine.copy_(other)

    def _move_target(self, rate: float) -> None:
        self._target_params.lerp_(self.flat.params.detach(), rate)
        for mine, other in zip(self.target.buffers(), self.policy.buffers(), strict=True):
            mine.copy_(other)

    def _draw_noise(self) -> list[Tensor]:
        """New noise of each network, equal on all ranks: a function of the gradient step, without state."""
        if not self.config.noisy:
            return []
        step = self.replays.gradient_steps
        streams = (stream(self._seed, name, step) for name in ("noise of choice", "noise", "noise of target"))
        count = self.policy.num_noise
        return [to_device(numbers.standard_normal(count, np.float32), self.comm.device) for numbers in streams]

    def _set_noise(self, noise: Sequence[Tensor]) -> None:
        """Set the result of `_draw_noise`."""
        for network, numbers in zip((self._selector, self.policy, self.target), noise, strict=False):
            network.set_noise(numbers)  # the policy after the selector, which may be the policy

    def shared_tensors(self) -> dict[str, Tensor]:
        """State that is equal on all ranks, by name; a resumed run writes into these tensors."""
        named = {f"policy.{name}": tensor for name, tensor in self.policy.state_dict().items()}
        named |= {f"optimizer.{name}": tensor for name, tensor in self.optimizer.state().items()}
        named |= {f"target.{name}": tensor for name, tensor in self.target.state_dict().items()}
        return named | {"counters": self.counters, "learning_rate": self.learning_rate, "metrics": self.metrics.table}


def train(session: Session[Run]) -> None:
    """Collect, update, log, evaluate, checkpoint, until all ranks together have taken `run.total_steps` steps."""
    run = session.run
    comm = session.comm
    timers = session.timers
    config = run.algorithm
    assert isinstance(config, DQNConfig)
    policy = QPolicy(session.spec, run.network, config, seed=stream_seed(run.seed, "init")).to(comm.device)
    dqn = DQN(run, policy, comm)
    session.begin(policy, dqn)
    dqn.copy_to_target()  # `init_from` may have changed the policy
    announce_replay(session.journal, run, policy.spec, comm.world, dqn.storage)
    envs = [block(run.num_envs, comm.world.num_shards, shard) for shard in comm.world.shards]
    capture = capture_acting(session.journal, run, comm)
    if config.noisy:
        actor = noisy_actor(policy, comm.device, run.seed, envs, capture)
    else:
        actor = actor_of(policy, comm.device, capture)
    explorer = EpsilonGreedy(session.spec.action)
    collector = session.make_collector(actor, explorer, noise_per_env=True, report_non_finite=True)
    announce_capture(session.journal, run, comm, dqn.flat)
    if run.compile:
        dqn.warmup_step(dqn.rows)()
    progress = Progress(run.total_steps)
    new_steps = run.num_envs * config.num_steps
    read_metrics = watch_support(session.journal, config, dqn.metrics.read)
    with session.training(progress, collector):
        while not session.over:
            explorer.epsilon = epsilon(config, progress.env_steps)
            if isinstance(actor, NoisyActor):
                actor.begin(progress.updates)
            rollouts = collector.collect()
            timers.enter(LEARN)
            totals = dqn.update(rollouts, session.local_statistics(), progress)
            timers.enter(OTHER)
            session.advance(new_steps, totals)
            session.log_evaluate_checkpoint(new_steps, read_metrics)
        session.checkpoint_last(read_metrics)
