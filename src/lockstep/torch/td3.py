"""Twin delayed deep deterministic policy gradient (Fujimoto et al., 2018, arXiv:1802.09477).

DDPG (Lillicrap et al., 2016, arXiv:1509.02971) is one critic, no delay and no noise of the target.

Shapes: K shards of this rank, N transitions of a shard's part of a minibatch, O observation, D dimensions of an action,
C critics, M of them in a target. Actions inside the losses are scaled to [-1, 1].
"""

import contextlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from lockstep.algorithms.td3 import METRICS, TD3Config
from lockstep.distributed.timers import LEARN, OTHER
from lockstep.experience.exploration import UniformStart
from lockstep.experience.replay import Transitions
from lockstep.experience.rollout import Collector, Rollout
from lockstep.record.progress import Progress
from lockstep.run import Run
from lockstep.session.checks import check_task
from lockstep.session.non_finite import NonFiniteError, locate_non_finite_replayed
from lockstep.session.shard_replays import TAKEN, ShardReplays, announce
from lockstep.torch import value_losses as losses
from lockstep.torch.actor_critic_optimizer import ActorCriticOptimizer
from lockstep.torch.comm import Comm
from lockstep.torch.continuous_policy import ContinuousPolicy
from lockstep.torch.flat import frozen_copy
from lockstep.torch.metrics import Metrics
from lockstep.torch.networks import actor_of
from lockstep.torch.non_finite import LossReader
from lockstep.torch.session import Session
from lockstep.torch.transfer import to_device
from lockstep.torch.transitions import TransitionBatch, priorities_to_host
from lockstep.world import stream_seed

_POLICY_SUMS = ("loss/policy",)


class TD3:
    """Actor-critic with a deterministic policy from a replay buffer, with target networks of actor and critics.

    State that survives an update: `policy` (critics, actor), `target`, `optimizer`, each shard's replay
    buffer and random stream, and `counters`, as in DQN.
    """

    def __init__(self, run: Run, policy: ContinuousPolicy, comm: Comm) -> None:
        config = run.algorithm
        assert isinstance(config, TD3Config)
        check_task(run, policy.spec)
        self.config = config
        self.policy = policy
        self.comm = comm
        self._shards = ShardReplays(run, policy.spec, comm)
        self.rows = self._shards.rows
        self.replays = self._shards.replays
        self.shard_state = self._shards.shard_state
        self.restore_shard = self._shards.restore_shard
        comm.broadcast_(policy)
        self.optimizer = ActorCriticOptimizer(run, policy, comm, _POLICY_SUMS)
        self.flat = self.optimizer.flat
        self._target_values = self.optimizer.values.clone()
        self.target = frozen_copy(policy, self._target_values)
        self._target_critics: Tensor | slice = slice(None)
        for critics in (policy.critics, self.optimizer.critics, self.target.critics):
            critics.generator = self.optimizer.dropout
        self.counters = torch.from_numpy(self._shards.counters)
        self.metrics = Metrics(METRICS, comm.device)
        self._stop_on_non_finite = run.non_finite == "stop"
        bfloat16 = run.precision == "bfloat16"
        self._precision = torch.autocast(comm.device.type, torch.bfloat16) if bfloat16 else contextlib.nullcontext()
        self._loss = torch.compile(self.loss, dynamic=False) if run.compile else self.loss

    def update(self, rollouts: list[Rollout], extra_sums: np.ndarray, progress: Progress | None = None) -> np.ndarray:
        """Add every shard's rollout to its buffer, and take the due gradient steps, as `DQN.update`; *collective*."""
        progress = progress or Progress(1)
        replayed, totals = self._shards.extend(rollouts, extra_sums, progress)
        if replayed.skipped and self._stop_on_non_finite:
            raise self._non_finite_error(rollouts, [], progress)
        self.optimizer.decay(progress.fraction)
        totals_of_steps = torch.zeros_like(self.optimizer.skipped)
        minibatches: list[list[TransitionBatch]] = []
        for drawn, weights in self._shards.minibatches(replayed):
            noise = self._shards.noise(1, self.policy.spec.action.width)
            parts = [
                TransitionBatch.of(d, w, self.comm.device, e) for d, w, e in zip(drawn, weights, noise, strict=True)
            ]
            totals_of_steps += self._step(parts, drawn)
            if self._stop_on_non_finite:
                minibatches.append(parts)
        # One host sync per rollout; the next rollout would wait for the device anyway.
        if replayed.due and self._stop_on_non_finite and bool(self.optimizer.halted):
            raise self._non_finite_error(rollouts, minibatches, progress)
        statistics = np.array([replayed.size, replayed.skipped])
        self.metrics.add(METRICS[-2:], to_device(statistics, self.comm.device), 1.0)
        if replayed.due:
            self.optimizer.add_metrics(self.metrics, totals_of_steps, replayed.due)
        return totals

    def _step(self, parts: Sequence[TransitionBatch], drawn: Sequence[Transitions]) -> Tensor:
        """One gradient step on every shard's part [N] of a minibatch, skipped on all ranks if any number is not finite.

        Returns:
            The sums that `ActorCriticOptimizer.step` returns.
        """
        c = self.config
        moves_policy = (int(self.counters[TAKEN]) + 1) % c.policy_delay == 0
        if c.target_critics is not None:
            chosen = self._shards.target_critics(c.num_critics, c.target_critics)
            self._target_critics = to_device(chosen, self.comm.device)
        seeds = self._shards.seeds() if self.optimizer.dropout is not None else ()
        totals, priorities = self.optimizer.step(self._loss, parts, seeds, moves_policy=moves_policy)
        if moves_policy:
            self._target_values.lerp_(self.optimizer.values, c.target_rate)
        self.counters[TAKEN] += 1
        if c.prioritized:
            on_host = priorities_to_host(totals[-1], priorities)
            if on_host is not None:
                self._shards.update_priorities(drawn, on_host)
        return totals

    def loss(self, batch: TransitionBatch, moves_policy: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """The losses of critics and policy; each has a gradient with respect to its own parameters only.

        a'   = clip(pi'(s') + clip(target_noise e, -noise_clip, noise_clip), -1, 1),  e standard normal
        y    = R + discount min_c Q'_c(s', a')
        L_Q  = w sum_c (y - Q_c(s, a))^2 / 2
        L_pi = -Q_1(s, pi(s))

        Args:
            batch: transitions of one shard, with the noise e.
            moves_policy: whether to compute L_pi.

        Returns:
            The *sum* of the losses over the rows [N]; rows and sums of `VALUE_METRICS`, then rows and sums of the
            policy; priorities [N].
        """
        c = self.config
        policy = self.policy
        assert batch.noise is not None
        with torch.no_grad():
            smoothing = (c.target_noise * batch.noise[:, 0]).clamp(-c.noise_clip, c.noise_clip)
            with self._precision:
                action = self.target.actor(batch.next_observation).float().tanh()
                following = self.target.critics(batch.next_observation, (action + smoothing).clamp(-1.0, 1.0)).float()
            y = losses.td_target(batch.reward, batch.discount, following[self._target_critics].amin(0))
        with self._precision:
            q = policy.critics(batch.observation, policy.scaled(batch.action)).float()
        error = y - q
        row = 0.5 * error.square().sum(0)
        total = torch.dot(batch.weight, row)
        with torch.no_grad():
            ones = torch.ones_like(row)
            priority = error.abs().mean(0)
            value_sums = torch.stack([ones, batch.weight * row, q.mean(0), y, priority]).sum(1)
        if not moves_policy:
            return total, torch.cat([value_sums, value_sums.new_zeros(1 + len(_POLICY_SUMS))]), priority

        with self._precision:
            q = self.optimizer.critics(batch.observation, policy.actor(batch.observation).tanh()).float()
        policy_row = -(q[0] if c.target_critics is None else q.mean(0))
        total = total + policy_row.sum()
        with torch.no_grad():
            policy_sums = torch.stack([ones, policy_row]).sum(1)
        return total, torch.cat([value_sums, policy_sums]), priority

    def _non_finite_error(
        self, rollouts: list[Rollout], minibatches: Sequence[Sequence[TransitionBatch]], progress: Progress
    ) -> NonFiniteError:
        reader = LossReader(self.loss, self.flat)
        batches = [[(part,) for part in parts] for parts in minibatches]
        return locate_non_finite_replayed(self.comm, rollouts, batches, progress, reader)

    def warmup(self, rows: int) -> Callable[[], object]:
        """Return a function that takes a gradient step on `rows` rows of zeros, without messages or effects."""
        batch = TransitionBatch.blank(self.policy.spec, rows, self.comm.device, num_actions=1)
        return self.optimizer.warmup(self._loss, batch)

    def copy_to_target(self) -> None:
        """Make the target networks equal to the policy and its critics."""
        self._target_values.copy_(self.optimizer.values)

    def shared_tensors(self) -> dict[str, Tensor]:
        """State that is equal on all ranks, by name; a resumed run writes into these tensors."""
        named = {f"policy.{name}": tensor for name, tensor in self.policy.state_dict().items()}
        named |= {f"target.{name}": tensor for name, tensor in self.target.state_dict().items()}
        return named | self.optimizer.state() | {"counters": self.counters, "metrics": self.metrics.table}


def train(session: Session[Run]) -> None:
    """Collect, update, log, evaluate, checkpoint, until all ranks together have taken `run.total_steps` steps."""
    run = session.run
    comm = session.comm
    timers = session.timers
    config = run.algorithm
    assert isinstance(config, TD3Config)
    check_task(run, session.spec)
    policy = ContinuousPolicy(session.spec, run.network, config, seed=stream_seed(run.seed, "init")).to(comm.device)
    td3 = TD3(run, policy, comm)
    session.begin(policy, None, td3)
    td3.copy_to_target()  # `init_from` may have changed the policy
    announce(session.journal, run, policy.spec, comm.world)
    explorer = UniformStart(session.spec.action, policy.distribution)
    collector = Collector(
        comm.world,
        session.make_envs(run.num_envs),
        actor_of(policy, comm.device),
        explorer,
        num_steps=config.num_steps,
        seed=run.seed,
        timers=timers,
        report_non_finite=True,
    )
    if run.compile:
        td3.warmup(td3.rows)()
    progress = Progress(run.total_steps)
    batch_size = run.num_envs * config.num_steps
    with session.training(progress, collector):
        while not session.over:
            explorer.random = progress.env_steps < config.learning_starts
            rollouts = collector.collect()
            timers.enter(LEARN)
            totals = td3.update(rollouts, session.local_statistics(), progress)
            timers.enter(OTHER)
            session.advance(batch_size, totals)
            session.log_evaluate_checkpoint(batch_size, td3.metrics.read)
        session.checkpoint_last(td3.metrics.read)
