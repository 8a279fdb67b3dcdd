"""Deep Q-learning (Mnih et al., 2015) with its standard improvements (Hessel et al., 2018, arXiv:1710.02298).

Shapes: K shards of this process, L of them on a device, S of all ranks, B environments of a shard, N transitions of a
shard's part of a minibatch, A actions, Z points of a return's distribution, P parameters.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.algorithms.dqn import METRICS, DQNConfig
from lockstep.distributed.timers import LEARN, OTHER
from lockstep.experience.exploration import EpsilonGreedy, epsilon
from lockstep.experience.replay import Transitions
from lockstep.experience.rollout import Collector, Rollout
from lockstep.jax import value_losses as losses
from lockstep.jax.adam import Adam, norm_of
from lockstep.jax.comm import Comm
from lockstep.jax.dqn_state import State
from lockstep.jax.flat import FlatParameters, Params
from lockstep.jax.networks import actor_of
from lockstep.jax.non_finite import LossReader
from lockstep.jax.q_networks import NoisyActor, QPolicy
from lockstep.jax.session import Session
from lockstep.jax.transitions import Part, TransitionBatch, weighing
from lockstep.record.metric_means import Means
from lockstep.record.progress import Progress
from lockstep.run import Run
from lockstep.session.non_finite import NonFiniteError, locate_non_finite_replayed
from lockstep.session.shard_replays import TAKEN, ShardReplays, announce
from lockstep.world import block, stream, stream_seed

_SUMS = ("loss/value", "value/q", "value/target", "value/td_error")
_NO_SUMS = np.zeros(1 + len(_SUMS) + 2, np.float32)


class DQN:
    """Q-learning from a replay, with a target network.

    What lives across updates: `state`, each shard's replay and its stream, and `counters`: the gradient steps taken,
    the environment step from which learning may begin, the part of a gradient step still owed.
    """

    def __init__(self, run: Run, policy: QPolicy, comm: Comm) -> None:
        config = run.algorithm
        assert isinstance(config, DQNConfig)
        self.config, self.policy, self.comm, self._seed = config, policy, comm, run.seed
        self._shards = ShardReplays(run, policy.spec, comm)
        self.rows, self.replays = self._shards.rows, self._shards.replays
        policy.params = comm.read(comm.broadcast(policy.params))
        self.flat, self.optimizer = FlatParameters(policy.params), Adam(config.adam_eps)
        self.counters, self.metrics = self._shards.counters, Means(METRICS)
        self._stops, self._precision = run.non_finite == "stop", run.precision
        self._step, self._copy = comm.spmd(self.step), comm.spmd(self._copied)
        self._split = jax.jit(self.flat.split)
        values, rate = self.flat.join(policy.params), jnp.asarray(config.learning_rate, jnp.float32)
        start = State(values, values, self.optimizer.init(values), rate, jnp.asarray(_NO_SUMS))
        self.state: State = comm.replicate(start)

    def update(self, rollouts: list[Rollout], extra_sums: np.ndarray, progress: Progress | None = None) -> np.ndarray:
        """Put a rollout of every local shard into its replay, and take the gradient steps that are due; collective.

        Args:
            rollouts: one for each local shard.
            extra_sums: [K, M] numbers that the caller wants summed over all shards with the same message.
            progress: how far the run is, this rollout not counted; default: at its start.

        Returns:
            The sums of `extra_sums` [M].

        Raises:
            NonFiniteError: on all ranks, if `non_finite` is `stop` and a number is not finite.
        """
        c, progress = self.config, progress or Progress(1)
        (faults, waiting, size), totals = self._extend(rollouts, extra_sums)
        if faults and self._stops:
            raise self._blame(rollouts, [], progress)
        rate = c.learning_rate * (1.0 - progress.fraction if c.learning_rate_schedule == "linear" else 1.0)
        new_steps = rollouts[0].reward.size * self.comm.world.num_shards
        due = self._shards.due(progress.env_steps, new_steps, c.updates_per_step, ready=not waiting)
        weight_of = weighing(c, self.comm.world.num_shards, int(size), progress.fraction)
        if due:
            self.state = self.state._replace(
                **self.comm.replicate({"learning_rate": np.float32(rate), "sums": _NO_SUMS})
            )
        kept = list[list[Part]]()
        for _ in range(due):
            self.comm.timers.enter(LEARN)  # tells the watch that this goes on
            drawn = self._shards.sample()
            noise = self._draw_noise()
            parts = [Part(TransitionBatch.of(one, weight_of(one)), *noise) for one in drawn]
            self._learn(parts, drawn)
            kept += [parts] * self._stops
        # The host reads this once per rollout; it would wait for the device anyway, when next it acts.
        sums = self.comm.read(self.state.sums)
        if sums[-1] and self._stops:
            raise self._blame(rollouts, kept, progress)
        statistics = [epsilon(c, progress.env_steps), size, faults / self.comm.world.num_shards]
        self.metrics.add(METRICS[-3:], statistics, 1.0)
        if due:
            self.policy.params = self._split(self.comm.local(self.state.values))
            self.metrics.add(_SUMS, sums[1:-2], sums[0])
            self.metrics.add(("optim/grad_norm",), sums[-2:-1], due - sums[-1])
            self.metrics.add(("optim/skipped",), sums[-1:], due)
            self.metrics.add(("optim/learning_rate",), [rate], 1.0)
        return totals

    def _extend(self, rollouts: list[Rollout], extra_sums: np.ndarray) -> tuple[list[float], np.ndarray]:
        """Add the rollouts to the replay buffers; one message.

        Returns:
            Over all shards: how many have a non-finite value, how many cannot draw yet, transitions; and the sums of
            `extra_sums`.
        """
        statistics = self._shards.extend(rollouts)
        total = self.comm.sum_statistics(np.concatenate([statistics, extra_sums], 1), "facts")
        return total[:3].tolist(), total[3:]

    def _learn(self, parts: Sequence[Part], drawn: Sequence[Transitions]) -> None:
        """One gradient step on a minibatch, of which every local shard drew its part."""
        c = self.config
        self.state, priorities = self._step(self.state, self.comm.shard(parts))
        self.counters[TAKEN] += 1
        if c.target_rate is None and not self.counters[TAKEN] % c.target_update_every:
            self.copy_to_target()
        if c.prioritized:
            for replay, one, priority in zip(self.replays, drawn, self.comm.collect(priorities), strict=True):
                replay.update_priorities(one.index, priority)

    def step(self, state: State, own: Part) -> tuple[State, Array]:
        """One gradient step on every shard's part of a minibatch; without effect if it is not finite anywhere.

        From [L, N, ...] of this device also the priorities [L, N]: of a step left out NaN, which a replay ignores.
        """
        c, end, numbers = self.config, self.flat.num_parameters, self.comm.shard_numbers()
        parts = [jax.tree.map(operator.itemgetter(slot), own) for slot in range(self.comm.num_slots)]
        rows, priorities = zip(*(self._row(state, *one) for one in zip(numbers, parts, strict=True)), strict=True)
        total = self.comm.sum_shards(jnp.stack(rows), "average_gradients")
        gradient, sums, largest = jnp.split(total, [end, end + 1 + len(_SUMS)])
        gradient, scale = gradient / sums[0], 1.0 / largest.max()
        norm = norm_of(gradient) * scale
        totals = jnp.concatenate([sums[:1], sums[1:2] * scale, sums[2:], jnp.stack([norm, jnp.zeros_like(norm)])])
        if c.max_grad_norm is not None:
            scale *= jnp.minimum(c.max_grad_norm / (norm + 1e-6), 1.0)
        skipped = ~jnp.isfinite(totals).all()
        if self._stops:  # no step after it either: the parameters stay those with which it happened
            skipped |= state.sums[-1] > 0
        held = state.optimizer, state.values, gradient * scale, state.learning_rate
        values, optimizer = self.optimizer.step(*held, skipped)
        sums = state.sums + jnp.where(skipped, jnp.zeros_like(totals).at[-1].set(1.0), totals)
        after = State(values, state.target, optimizer, state.learning_rate, sums)
        if c.target_rate is not None:
            after = after._replace(target=after.target + c.target_rate * (after.values - after.target))
        return after, jnp.where(skipped, jnp.nan, jnp.stack(priorities))

    def _row(self, state: State, number: Array, part: Part) -> tuple[Array, Array]:
        """What a shard adds to a step: gradient sum [P], sums, its largest weight in one place of S; priorities [N]."""
        # Compiled as if it were alone: other shards on this device must not change its bits.
        values, target, part = jax.lax.optimization_barrier((state.values, state.target, part))
        networks = self.flat.split(values), self.flat.split(target)
        gradient, (sums, priority) = jax.grad(self.loss, has_aux=True)(*networks, part)
        largest = jax.nn.one_hot(number, self.comm.world.num_shards) * part.batch.weight.max()
        return jax.lax.optimization_barrier((jnp.concatenate([self.flat.join(gradient), sums, largest]), priority))

    def loss(self, params: Params, target: Params, own: Part) -> tuple[Array, tuple[Array, Array]]:
        """The weighted *sum* over rows [N] of how far off Q is; sums to tell, rows first; priorities [N].

        y = R + discount Q'(s', argmax_a Q(s', a)) with `double`, else R + discount max_a Q'(s', a)
        L = w l(y - Q(s, a)), or of the two distributions of the return
        """
        c, policy, precision, batch = self.config, self.policy, self._precision, own.batch
        outputs = losses.chosen(policy.outputs(params, batch.observation, own.noise, precision), batch.action)
        following = policy.outputs(target, batch.next_observation, own.noise_of_target, precision)
        judge = policy.outputs(params, batch.next_observation, own.noise_of_judge, precision) if c.double else following
        following = jax.lax.stop_gradient(losses.chosen(following, policy.expected(judge).argmax(-1)))
        if c.value_distribution == "categorical":
            goal, support = policy.probability(following), jnp.asarray(policy.support)
            goal = losses.categorical_projection(goal, batch.reward, batch.discount, support)
            row = losses.cross_entropy(outputs, goal)
            q, y = (policy.probability(outputs) * support[None]).sum(-1), (goal * support[None]).sum(-1)
        elif c.value_distribution == "quantile":
            goal = losses.td_target(batch.reward, batch.discount, following)
            row, q, y = losses.quantile_huber(outputs, goal), outputs.mean(-1), goal.mean(-1)
        else:
            q, y = outputs, losses.td_target(batch.reward, batch.discount, following)
            row = (losses.huber if c.loss == "huber" else losses.squared)(y - q)
        error = jnp.abs(y - q)
        sums = jnp.stack([jnp.ones_like(q), batch.weight * row, q, y, error]).sum(1)
        return jnp.dot(batch.weight, row), (sums, error if c.value_distribution == "none" else row)

    def rehearse(self) -> None:
        """Compile all that an update calls, before the clocks start; collective. Nothing is changed."""
        batch, noise = TransitionBatch.blank(self.policy.spec, self.rows), self._draw_noise()
        own = self.comm.shard([Part(batch, *noise) for _ in self.replays])
        state, priorities = self._step(self.comm.replicate(self.comm.read(self.state)), own)
        self.comm.collect(priorities)
        self._split(self.comm.local(self._copy(state, ())[0].values))

    def copy_to_target(self) -> None:
        """Make the target network equal to the one that learns."""
        self.state, _ = self._copy(self.state, ())

    def _copied(self, state: State, own: tuple[()]) -> tuple[State, tuple[()]]:
        return state._replace(target=state.values), own

    def _blame(self, rollouts: list[Rollout], kept: list[list[Part]], progress: Progress) -> NonFiniteError:
        state, number, end = self.comm.local(self.state), jnp.zeros((), jnp.int32), [self.flat.num_parameters]

        def sums(own: Part) -> list[Array]:
            return jnp.split(self._row(state, number, own)[0], end)

        return locate_non_finite_replayed(self.comm, rollouts, kept, progress, LossReader(sums, self.rows))

    def _draw_noise(self) -> list[np.ndarray | None]:
        """New noise of all networks, the same on all ranks: by the number of the gradient step, from no state."""
        step, names = int(self.counters[TAKEN]), ("noise", "noise of target", "noise of choice")
        if not self.config.noisy:
            return [None, None, None]
        return [self.policy.draw_noise(stream(self._seed, name, step)) for name in names]

    def shared_arrays(self) -> dict[str, np.ndarray]:
        """Copies of everything that must be equal on all ranks."""
        totals = {"counters": self.counters.copy(), "metrics": self.metrics.table.copy()}
        return self.comm.read(self.state).named(self.flat) | totals

    def load_shared(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from what `shared_arrays` told, or a part of it."""
        self.state = self.comm.replicate(self.comm.read(self.state).loaded(self.flat, arrays))
        self.policy.params = self._split(self.comm.local(self.state.values))
        self.counters[:] = arrays.get("counters", self.counters)
        self.metrics.table[:] = arrays.get("metrics", self.metrics.table)

    def shard_state(self, k: int) -> dict[str, Any]:
        """What belongs to local shard number `k` alone and outlives an update."""
        return self._shards.shard_state(k)

    def restore_shard(self, k: int, state: dict[str, Any]) -> None:
        """Continue local shard number `k` from what `shard_state` told."""
        self._shards.restore_shard(k, state)


def train(session: Session) -> None:
    """Act, keep, learn, tell, until all ranks together have taken `run.total_steps` steps."""
    run, comm, device = session.run, session.comm, session.comm.devices[0]
    config = run.algorithm
    assert isinstance(config, DQNConfig)
    policy = QPolicy(session.spec, run.network, config, seed=stream_seed(run.seed, "init"))
    dqn = DQN(run, policy, comm)
    session.begin(policy, None, dqn)
    dqn.copy_to_target()  # it may have begun from another run's policy
    announce(session.journal, run, policy.spec, comm.world)
    envs = [block(run.num_envs, comm.world.num_shards, shard) for shard in comm.world.shards]
    actor = NoisyActor(policy, run.seed, envs, device) if config.noisy else actor_of(policy, device)
    explorer = EpsilonGreedy(session.spec.action)
    collector = Collector(
        comm.world, session.make_envs(run.num_envs), actor, explorer,
        num_steps=config.num_steps, seed=run.seed, timers=session.timers, noise_per_env=True, report_non_finite=True,
    )  # fmt: skip
    dqn.rehearse()
    actor(np.zeros((len(envs), len(envs[0]), *policy.spec.observation_shape), policy.spec.observation_dtype))
    progress, batch_size = Progress(run.total_steps), run.num_envs * config.num_steps
    with session.training(progress, collector):
        while not session.over:
            explorer.epsilon = epsilon(config, progress.env_steps)
            if isinstance(actor, NoisyActor):
                actor.begin(progress.updates)
            rollouts = collector.collect()
            session.timers.enter(LEARN)
            totals = dqn.update(rollouts, session.local_statistics(), progress)
            session.timers.enter(OTHER)
            session.advance(batch_size, totals)
            if progress.due(run.log_every, batch_size):
                session.log(dqn.metrics.read())
            if progress.due(run.evaluate_every, batch_size):
                session.evaluate()
            session.checkpoint_if_due(batch_size)
        session.checkpoint_last(dqn.metrics.read)
