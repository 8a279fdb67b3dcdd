"""Twin delayed deep deterministic policy gradient (TD3; Fujimoto et al., 2018, arXiv:1802.09477), also as DDPG.

Shapes: K shards of this process, L of them on a device, S of all ranks, N transitions of a shard's part of a minibatch,
D dimensions of an action, C critics, P parameters of the actor, Q of the critics. Actions inside the losses
are scaled to [-1, 1].
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.algorithms.td3 import METRICS, TD3Config
from lockstep.distributed.timers import LEARN, OTHER
from lockstep.experience.exploration import UniformStart
from lockstep.experience.replay import Transitions
from lockstep.experience.rollout import Collector, Rollout
from lockstep.jax import value_losses as losses
from lockstep.jax.actor_critic_optimizer import ActorCriticOptimizer, State
from lockstep.jax.comm import Comm
from lockstep.jax.continuous_policy import ContinuousPolicy
from lockstep.jax.flat import Params, subtree
from lockstep.jax.networks import actor_of
from lockstep.jax.session import Session
from lockstep.jax.transitions import ActorCriticPart
from lockstep.record.metric_means import MetricMeans
from lockstep.record.progress import Progress
from lockstep.run import Run
from lockstep.session.checks import check_task
from lockstep.session.non_finite import NonFiniteError, locate_non_finite_replayed
from lockstep.session.shard_replays import TAKEN, ShardReplays, announce
from lockstep.world import stream_seed

_POLICY_SUMS = ("loss/policy",)
_NUM_ACTIONS = 1
"""Whose noise is drawn for a transition: that of the critics' target."""


class TD3:
    """Deterministic actor-critic from a replay buffer, with a target actor, target critics and a delayed policy.

    Persistent across updates: `state`, each shard's replay buffer and random stream, and `counters`, as in DQN.
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
        self.counters = self._shards.counters
        self.shard_state = self._shards.shard_state
        self.restore_shard = self._shards.restore_shard
        policy.params = comm.read(comm.broadcast(policy.params))
        self.optimizer = ActorCriticOptimizer(
            run, policy, comm, self.critic_loss, self.policy_loss, _POLICY_SUMS, target_actor=True
        )
        self.metrics = MetricMeans(METRICS)
        self._stop_on_non_finite = run.non_finite == "stop"
        self._precision = run.precision
        self.copy_to_target = self.optimizer.copy_to_target

    @property
    def state(self) -> State:
        """What updates change on the devices."""
        return self.optimizer.state

    # -- maths ---------------------------------------------------------------------------------------------------------

    def critic_loss(
        self, critics: Params, target: Params, actor: Params, part: ActorCriticPart, keys: Sequence[Array | None]
    ) -> tuple[Array, tuple[Array, Array]]:
        """The critics' loss as a weighted *sum* over rows [N]; metric sums, row count first; priorities [N].

        a'  = clip(mu'(s') + clip(target_noise e, -noise_clip, noise_clip), -1, 1),  e standard normal
        y   = R + discount min_c Q'_c(s', a')
        L_Q = w sum_c (y - Q_c(s, a))^2 / 2
        """
        del actor  # the target's actor acts
        c, policy, batch, precision = self.config, self.policy, part.batch, self._precision
        noise = jnp.clip(c.target_noise * batch.noise[:, 0], -c.noise_clip, c.noise_clip)
        action = jnp.tanh(policy.parameters(target, batch.next_observation, precision))
        action = jnp.clip(action + noise, -1.0, 1.0)
        next_q = policy.q(subtree(target, "critics"), batch.next_observation, action, keys[0], precision)
        if part.target_critics is not None:
            next_q = next_q[part.target_critics]
        y = jax.lax.stop_gradient(losses.td_target(batch.reward, batch.discount, next_q.min(0)))
        q = policy.q(critics, batch.observation, policy.scaled(batch.action), keys[1], precision)
        error = y[None] - q
        row = 0.5 * jnp.square(error).sum(0)
        priority = jnp.abs(error).mean(0)
        sums = jnp.stack([jnp.ones_like(row), batch.weight * row, q.mean(0), y, priority]).sum(1)
        return jnp.dot(batch.weight, row), (sums, priority)

    def policy_loss(
        self, actor: Params, critics: Params, part: ActorCriticPart, key: Array | None
    ) -> tuple[Array, Array]:
        """The loss of the actor as a *sum* over rows [N]; metric sums, row count first.

        L_mu = -Q_1(s, mu(s)), or minus the mean of all critics with `target_critics`
        """
        policy, batch, precision = self.policy, part.batch, self._precision
        action = jnp.tanh(policy.parameters(actor, batch.observation, precision))
        q = policy.q(critics, batch.observation, action, key, precision)
        row = -(q[0] if self.config.target_critics is None else q.mean(0))
        return row.sum(), jnp.stack([jnp.ones_like(row), row]).sum(1)

    # -- order ---------------------------------------------------------------------------------------------------------

    def update(self, rollouts: list[Rollout], extra_sums: np.ndarray, progress: Progress | None = None) -> np.ndarray:
        """Add every shard's rollout to its buffer, and take the due gradient steps, as `DQN.update`; *collective*."""
        progress = progress or Progress(1)
        replayed, totals = self._shards.extend(rollouts, extra_sums, progress)
        if replayed.skipped and self._stop_on_non_finite:
            raise self._locate_non_finite(rollouts, [], progress)
        if replayed.due:
            self.optimizer.begin(progress.fraction)
        minibatches = list[list[ActorCriticPart]]()
        for drawn, weights in self._shards.minibatches(replayed):
            parts = ActorCriticPart.draw(self.policy, self._shards, drawn, weights, _NUM_ACTIONS)
            self._learn(parts, drawn)
            if self._stop_on_non_finite:
                minibatches.append(parts)
        # One host sync per rollout; acting would wait for the device anyway.
        sums = self.comm.read(self.optimizer.state.sums)
        if sums[-1] and self._stop_on_non_finite:
            raise self._locate_non_finite(rollouts, minibatches, progress)
        self.metrics.add(METRICS[-2:], [replayed.size, replayed.skipped], 1.0)
        if replayed.due:
            self.optimizer.add_metrics(self.metrics, sums, replayed.due)
            self.policy.params = self.optimizer.params()
        return totals

    def _learn(self, parts: Sequence[ActorCriticPart], drawn: Sequence[Transitions]) -> None:
        """Take one gradient step on a minibatch, of which every local shard sampled its part."""
        moves_policy = (int(self.counters[TAKEN]) + 1) % self.config.policy_delay == 0
        priorities = self.optimizer.learn(parts, moves_policy=moves_policy)
        self.counters[TAKEN] += 1
        if self.config.prioritized:
            self._shards.update_priorities(drawn, self.comm.unshard(priorities))

    def _locate_non_finite(
        self, rollouts: list[Rollout], minibatches: list[list[ActorCriticPart]], progress: Progress
    ) -> NonFiniteError:
        reader = self.optimizer.reader(self.rows)
        return locate_non_finite_replayed(self.comm, rollouts, minibatches, progress, reader)

    def warmup(self) -> None:
        """Compile everything that an update calls, without changing the state; *collective*."""
        self.optimizer.warmup([ActorCriticPart.blank(self.policy, self.rows, _NUM_ACTIONS) for _ in self.replays])

    def shared_arrays(self) -> dict[str, np.ndarray]:
        """Copies of all state that is equal on every rank, by name, for checkpoints."""
        totals = {"counters": self.counters.copy(), "metrics": self.metrics.table.copy()}
        return self.optimizer.shared_arrays() | totals

    def load_shared(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Load `shared_arrays`, or a part of it."""
        self.optimizer.load_shared(arrays)
        self.policy.params = self.optimizer.params()
        self.counters[:] = arrays.get("counters", self.counters)
        self.metrics.table[:] = arrays.get("metrics", self.metrics.table)


def train(session: Session) -> None:
    """Collect, update, log, evaluate, checkpoint, until all ranks together have taken `run.total_steps` steps."""
    run, comm = session.run, session.comm
    config = run.algorithm
    assert isinstance(config, TD3Config)
    check_task(run, session.spec)
    policy = ContinuousPolicy(session.spec, run.network, config, seed=stream_seed(run.seed, "init"))
    td3 = TD3(run, policy, comm)
    session.begin(policy, None, td3)
    td3.copy_to_target()  # `session.begin` may have loaded another run's policy
    announce(session.journal, run, policy.spec, comm.world)
    actor, explorer = actor_of(policy, comm.devices[0]), UniformStart(session.spec.action, policy.sampler)
    collector = Collector(
        comm.world, session.make_envs(run.num_envs), actor, explorer,
        num_steps=config.num_steps, seed=run.seed, timers=session.timers, report_non_finite=True,
    )  # fmt: skip
    td3.warmup()
    progress, batch_size = Progress(run.total_steps), run.num_envs * config.num_steps
    with session.training(progress, collector):
        while not session.over:
            explorer.random = progress.env_steps < config.learning_starts
            rollouts = collector.collect()
            session.timers.enter(LEARN)
            totals = td3.update(rollouts, session.local_statistics(), progress)
            session.timers.enter(OTHER)
            session.advance(batch_size, totals)
            session.log_evaluate_checkpoint(batch_size, td3.metrics.read)
        session.checkpoint_last(td3.metrics.read)
