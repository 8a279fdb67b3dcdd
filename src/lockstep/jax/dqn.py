"""Deep Q-learning (Mnih et al., 2015) with its standard improvements (Hessel et al., 2018, arXiv:1710.02298).

Shapes: K shards of this process, L of them on a device, N transitions of a shard's part of a minibatch, G gradient
steps of a call, P parameters, M numbers of the caller.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.algorithms.dqn import METRICS, DQNConfig
from lockstep.algorithms.interface import ALL_SETTINGS
from lockstep.algorithms.replay import VALUE_METRICS
from lockstep.distributed.timers import LEARN, OTHER
from lockstep.experience.acting import ActorWithState
from lockstep.experience.exploration import EpsilonGreedy, NoisyActor, epsilon
from lockstep.experience.replay import Transitions
from lockstep.experience.rollout import Rollout
from lockstep.jax import value_losses as losses
from lockstep.jax.adam import Adam, AdamState, clip_by_global_norm
from lockstep.jax.batch import slots
from lockstep.jax.comm import Comm
from lockstep.jax.device_rows import ReplayObservations, observed
from lockstep.jax.flat import FlatParameters, Params, subtree, with_prefix
from lockstep.jax.loops import StepCalls, stacked, steps_first
from lockstep.jax.networks import actor_of
from lockstep.jax.non_finite import LossReader
from lockstep.jax.q_networks import QPolicy, noisy_actor
from lockstep.jax.session import Session
from lockstep.jax.transitions import Part, TransitionBatch
from lockstep.record.metric_means import MetricMeans
from lockstep.record.progress import Progress
from lockstep.run import Run
from lockstep.session.kept_minibatches import KeptMinibatches
from lockstep.session.non_finite import NonFiniteError, locate_non_finite_replayed
from lockstep.session.shard_replays import Replayed, ShardReplays, announce_replay
from lockstep.session.support_watch import watch_support
from lockstep.world import block, stream, stream_seed

_NO_SUMS = np.zeros(1 + len(VALUE_METRICS) + 2, np.float32)


class State(NamedTuple):
    """Parameters of both networks, optimizer state and metric sums."""

    params: Array
    """All parameters of the online network [P], in the order of `FlatParameters`."""
    target_params: Array
    """All parameters of the target network [P]."""
    optimizer: AdamState
    learning_rate: Array
    sums: Array
    """Over the gradient steps since the last rollout: rows, metric sums, gradient norms, skipped steps."""

    def named(self, flat: FlatParameters) -> dict[str, np.ndarray]:
        """The state as host arrays by checkpoint name; torch uses the same names."""
        named = with_prefix("policy", flat.split(self.params)) | with_prefix("optimizer", self.optimizer._asdict())
        named |= with_prefix("target", flat.split(self.target_params)) | {"learning_rate": self.learning_rate}
        return {name: np.asarray(array) for name, array in named.items()}

    def loaded(self, flat: FlatParameters, arrays: Mapping[str, np.ndarray]) -> Self:
        """The state with the entries of `arrays`, named as in `named`, replaced; on the host."""
        merged = {name: np.asarray(arrays.get(name, old), old.dtype) for name, old in self.named(flat).items()}
        named = cast(Params, merged)  # numpy arrays, for `Comm.replicate`
        params, target = (flat.join(subtree(named, network)) for network in ("policy", "target"))
        optimizer = AdamState(**subtree(named, "optimizer"))
        rate = named["learning_rate"]
        return self._replace(params=params, target_params=target, optimizer=optimizer, learning_rate=rate)


class DQN:
    """Q-learning from a replay buffer, with a target network.

    State across updates: `state`, each shard's replay buffer and random stream, and `counters`: gradient steps
    taken, the environment step at which learning may start, and the pending fraction of a gradient step.
    """

    FOLLOWS = ALL_SETTINGS

    def __init__(self, run: Run, policy: QPolicy, comm: Comm) -> None:
        config = run.algorithm
        assert isinstance(config, DQNConfig)
        self.config = config
        self.policy = policy
        self.comm = comm
        self._seed = run.seed
        self.replay_observations = ReplayObservations(run, policy.spec, comm)
        self.replays = ShardReplays(run, policy.spec, comm, self.replay_observations.storage)
        self.rows = self.replays.rows
        self.counters = self.replays.counters
        self.shard_state = self.replays.shard_state
        self.restore_shard = self.replays.restore_shard
        policy.params = comm.read(comm.broadcast(policy.params))
        self.flat = FlatParameters(policy.params)
        self.optimizer = Adam(config.adam_eps)
        self.metrics = MetricMeans(METRICS)
        self._stop_on_non_finite = run.non_finite == "stop"
        self._precision = run.precision
        self._calls = StepCalls(run, policy.spec, comm.devices[0].platform, [self._blank()] * comm.num_slots)
        self._step_spmd = comm.spmd(self.step)
        self._steps_spmd = comm.spmd(self.steps)
        self._copy = comm.spmd(self._copied, donate=False)
        self._split = jax.jit(self.flat.split)
        flat_params = self.flat.join(policy.params)
        rate = jnp.asarray(config.learning_rate, jnp.float32)
        start = State(flat_params, flat_params, self.optimizer.init(flat_params), rate, jnp.asarray(_NO_SUMS))
        self.state: State = comm.replicate(start)

    # -- maths ---------------------------------------------------------------------------------------------------------

    def loss(self, params: Params, target: Params, part: Part) -> tuple[Array, tuple[Array, Array]]:
        """The temporal-difference loss as a weighted *sum* over rows [N]; metric sums, row count first; priorities [N].

        y = R + discount Q'(s', argmax_a Q(s', a)) with `double`, else R + discount max_a Q'(s', a)
        L = w l(y - Q(s, a)), or the distributional loss of `value_distribution`
        """
        c, policy, precision, batch = self.config, self.policy, self._precision, part.batch
        outputs = losses.gather_actions(policy.outputs(params, batch.observation, part.noise, precision), batch.action)
        outputs = outputs.astype(jnp.float32)
        next_outputs = policy.outputs(target, batch.next_observation, part.noise_of_target, precision)
        selector = next_outputs
        if c.double:
            selector = policy.outputs(params, batch.next_observation, part.noise_of_selector, precision)
        next_action = policy.expected(selector).argmax(-1)
        next_outputs = jax.lax.stop_gradient(losses.gather_actions(next_outputs, next_action)).astype(jnp.float32)
        if c.value_distribution == "categorical":
            support = jnp.asarray(policy.support)
            next_probability = policy.probability(next_outputs)
            projected = losses.categorical_projection(next_probability, batch.reward, batch.discount, support)
            row_loss = losses.cross_entropy(outputs, projected)
            q = (policy.probability(outputs) * support[None]).sum(-1)
            y = (projected * support[None]).sum(-1)
        elif c.value_distribution == "quantile":
            quantiles = losses.td_target(batch.reward, batch.discount, next_outputs)
            row_loss = losses.quantile_huber(outputs, quantiles)
            q, y = outputs.mean(-1), quantiles.mean(-1)
        else:
            q, y = outputs, losses.td_target(batch.reward, batch.discount, next_outputs)
            row_loss = (losses.huber if c.loss == "huber" else losses.squared)(y - q)
        error = jnp.abs(y - q)
        sums = jnp.stack([jnp.ones_like(q), batch.weight * row_loss, q, y, error]).sum(1)
        return jnp.dot(batch.weight, row_loss), (sums, error if c.value_distribution == "none" else row_loss)

    # -- order ---------------------------------------------------------------------------------------------------------

    def steps(
        self, shared: tuple[State, Array], own: tuple[Part, Array | None]
    ) -> tuple[tuple[State, Array], tuple[()]]:
        """Take one gradient step after another on minibatches [L, G, ...].

        Args:
            shared: the state, and whether the target network becomes a copy after each of G steps.
            own: every shard's part of each minibatch, and the rows of observations on the device, if they are there.
        """
        (state, copies), (parts, observations) = shared, own

        def step(state: State, given: tuple[Part, Array]) -> tuple[State, None]:
            part, copied = given
            state, _ = self.step(state, (part, observations))
            if self.config.target_rate is None:
                state = state._replace(target_params=jnp.where(copied, state.params, state.target_params))
            return state, None

        state, _ = jax.lax.scan(step, state, (steps_first(parts), copies))
        return (state, copies), ()

    def step(self, state: State, own: tuple[Part, Array | None]) -> tuple[State, Array]:
        """Take one gradient step on every shard's part of a minibatch; a no-op if any number is not finite.

        `own` has the parts, and the rows of observations on the device, if they are there.

        Also returns the priorities [L, N] of this device's rows; NaN, which replay buffers ignore, for a skipped step.
        """
        c, end = self.config, self.flat.num_parameters
        rows, priorities, (parts, observations) = list[Array](), list[Array](), own
        for number, part in zip(self.comm.shard_numbers(), slots(parts, self.comm.num_slots), strict=True):
            row, priority = self._shard_sums(state, number, observed(part, observations, self.policy.spec))
            rows.append(row)
            priorities.append(priority)
        total = self.comm.sum_shards(jnp.stack(rows), "average_gradients")
        gradient, sums, max_weights = jnp.split(total, [end, end + 1 + len(VALUE_METRICS)])
        # Products, as XLA divides a vector by a number in one layout and multiplies by the inverse in another.
        scale, inverse = 1.0 / max_weights.max(), 1.0 / sums[0]
        sums = sums.at[1].multiply(scale)
        gradient, norm = clip_by_global_norm(gradient * (scale * inverse), c.max_grad_norm)
        totals = jnp.concatenate([sums, jnp.stack([norm, jnp.zeros_like(norm)])])
        # Without barriers programs of different layouts may fuse these products with the sums of Adam or not, and round
        # differently.
        gradient, totals = jax.lax.optimization_barrier((gradient, totals))
        skipped = ~jnp.isfinite(totals).all()
        if self._stop_on_non_finite:  # later steps are skipped too, so that the failing parameters are preserved
            skipped |= state.sums[-1] > 0
        params, optimizer = self.optimizer.step(state.optimizer, state.params, gradient, state.learning_rate, skipped)
        sums = state.sums + jnp.where(skipped, jnp.zeros_like(totals).at[-1].set(1.0), totals)
        after = State(params, state.target_params, optimizer, state.learning_rate, sums)
        if c.target_rate is not None:
            target_params = after.target_params + c.target_rate * (after.params - after.target_params)
            after = after._replace(target_params=target_params)
        return after, jnp.where(skipped, jnp.nan, jnp.stack(priorities))

    def _shard_sums(self, state: State, number: Array, part: Part) -> tuple[Array, Array]:
        """One shard's contribution to a step, and its priorities [N].

        The contribution is its gradient sum [P], metric sums, and S slots of which its own holds its largest weight.
        """
        # The barriers isolate the shard's computation: other shards on this device must not change its bits.
        flat_params, target, part = jax.lax.optimization_barrier((state.params, state.target_params, part))
        networks = self.flat.split(flat_params), self.flat.split(target)
        gradient, (sums, priority) = jax.grad(self.loss, has_aux=True)(*networks, part)
        max_weights = jax.nn.one_hot(number, self.comm.world.num_shards, dtype=jnp.float32) * part.batch.weight.max()
        return jax.lax.optimization_barrier((jnp.concatenate([self.flat.join(gradient), sums, max_weights]), priority))

    def update(self, rollouts: list[Rollout], caller_sums: np.ndarray, progress: Progress | None = None) -> np.ndarray:
        """Store a rollout of every local shard in its replay buffer and take the gradient steps due; collective.

        Args:
            rollouts: one for each local shard.
            caller_sums: [K, M] numbers to sum over all shards in the same message.
            progress: of the run before this rollout; default: at its start.

        Returns:
            The sums of `caller_sums` [M].

        Raises:
            NonFiniteError: on all ranks, if `non_finite` is `stop` and a number is not finite.
        """
        c, progress = self.config, progress or Progress(1)
        replayed, caller_sums = self.replays.extend(rollouts, caller_sums, progress)
        if replayed.skipped and self._stop_on_non_finite:
            raise self._non_finite_error(rollouts, [], progress)
        rate = c.learning_rate * (1.0 - progress.fraction if c.learning_rate_schedule == "linear" else 1.0)
        if replayed.num_gradient_steps:
            fresh = self.comm.replicate({"learning_rate": np.float32(rate), "sums": _NO_SUMS})
            self.state = self.state._replace(**fresh)
        kept, draws = KeptMinibatches[Part](self._non_finite, enabled=self._stop_on_non_finite), self._draw(replayed)
        for length in self._calls.lengths(replayed.num_gradient_steps, self.replays.gradient_steps):
            steps = list(islice(draws, length))
            self._learn(steps)
            kept.add(*(parts for parts, _ in steps))
        # One host sync per rollout; acting would wait for the device anyway.
        sums = self.comm.read(self.state.sums)
        if sums[-1] and self._stop_on_non_finite:
            raise self._non_finite_error(rollouts, kept.minibatches, progress)
        statistics = [epsilon(c, progress.env_steps), replayed.size, replayed.skipped]
        names = ("exploration/epsilon", "replay/size", "replay/skipped")
        self.metrics.add(names, statistics, 1.0)
        if replayed.num_gradient_steps:
            self.policy.params = self._split(self.comm.local(self.state.params))
            num_rows, *value_sums, norm_sum, num_skipped = sums
            self.metrics.add(VALUE_METRICS, value_sums, num_rows)
            self.metrics.add(("optim/grad_norm",), [norm_sum], replayed.num_gradient_steps - num_skipped)
            self.metrics.add(("optim/skipped",), [num_skipped], replayed.num_gradient_steps)
            self.metrics.add(("optim/learning_rate",), [rate], 1.0)
        return caller_sums

    def _non_finite(self) -> bool:
        """Whether a number that is not finite has stopped the gradient steps of this update; waits for the device."""
        return bool(self.comm.read(self.state.sums)[-1])

    def _draw(self, replayed: Replayed) -> Iterator[tuple[list[Part], list[Transitions]]]:
        """The minibatch of each gradient step that is due: each local shard's part, and the transitions in it.

        A step is counted when its minibatch is drawn: several are drawn before the call that takes their steps.
        """
        for drawn, weights in self.replays.minibatches(replayed):
            parts = self._parts(drawn, weights)
            self.replays.gradient_steps += 1
            yield parts, drawn

    def _parts(self, drawn: Sequence[Transitions], weights: Sequence[np.ndarray]) -> list[Part]:
        """Each local shard's part of the minibatch of the next gradient step, with its random numbers."""
        noise = self._draw_noise()
        return [Part(TransitionBatch.of(*pair), *noise) for pair in zip(drawn, weights, strict=True)]

    def _learn(self, steps: Sequence[tuple[list[Part], list[Transitions]]]) -> None:
        """Take a gradient step on each minibatch, in one compiled call, with the copies into the target network."""
        c, taken = self.config, self.replays.gradient_steps
        copies = np.arange(taken - len(steps) + 1, taken + 1) % c.target_update_every == 0
        if len(steps) > 1:
            own = self.comm.shard(stacked([parts for parts, _ in steps]))
            (self.state, _), _ = self._steps_spmd((self.state, copies), (own, self.replay_observations.rows()))
            return
        ((parts, drawn),) = steps
        self.state, priorities = self._step_spmd(self.state, (self.comm.shard(parts), self.replay_observations.rows()))
        if c.target_rate is None and copies[-1]:
            self.copy_to_target()
        if c.prioritized:
            self.replays.update_priorities(drawn, self.comm.unshard(priorities))

    def warmup(self) -> None:
        """Compile everything that an update calls, without changing the state; collective."""
        blank = [self._blank()] * len(self.replays.buffers)
        state: State = self.comm.replicate(self.comm.read(self.state))
        for length in sorted(self._calls.occurring()):
            if length > 1:
                own = self.comm.shard(stacked([blank] * length)), self.replay_observations.rows()
                (state, _), _ = self._steps_spmd((state, np.zeros(length, np.bool_)), own)
            else:
                state, priorities = self._step_spmd(state, (self.comm.shard(blank), self.replay_observations.rows()))
                self.comm.unshard(priorities)
        self._split(self.comm.local(self._copy(state.params, ())[0]))

    def _blank(self) -> Part:
        """A shard's part of a minibatch of zeros."""
        return self.replay_observations.blank(
            Part(TransitionBatch.blank(self.policy.spec, self.rows), *self._draw_noise())
        )

    def copy_to_target(self) -> None:
        """Copy the online network into the target network."""
        target, _ = self._copy(self.state.params, ())
        self.state = self.state._replace(target_params=target)

    def _copied(self, params: Array, own: tuple[()]) -> tuple[Array, tuple[()]]:
        return jnp.copy(params), own

    def _non_finite_error(
        self, rollouts: list[Rollout], minibatches: Sequence[Sequence[Part]], progress: Progress
    ) -> NonFiniteError:
        state, number = self.comm.local(self.state), jnp.zeros((), jnp.int32)

        def gradient_and_sums(part: Part) -> list[Array]:
            return jnp.split(self._shard_sums(state, number, part)[0], [self.flat.num_parameters])

        reader = LossReader(gradient_and_sums, self.rows)
        batches = [self.replay_observations.on_host(parts) for parts in minibatches]
        return locate_non_finite_replayed(self.comm, rollouts, batches, progress, reader)

    def _draw_noise(self) -> list[np.ndarray | None]:
        """Noise of the online, target and selecting networks; keyed by the gradient step, so equal on all ranks."""
        if not self.config.noisy:
            return [None, None, None]
        step = self.replays.gradient_steps
        names = ("noise", "noise of target", "noise of choice")
        return [self.policy.draw_noise(stream(self._seed, name, step)) for name in names]

    def shared_arrays(self) -> dict[str, np.ndarray]:
        """Copies of all state that is equal on every rank, by name, for checkpoints."""
        totals = {"counters": self.counters.copy(), "metrics": self.metrics.table.copy()}
        return self.comm.read(self.state).named(self.flat) | totals

    def load_shared(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Load `shared_arrays`, or a part of it."""
        self.state = self.comm.replicate(self.comm.read(self.state).loaded(self.flat, arrays))
        self.policy.params = self._split(self.comm.local(self.state.params))
        self.counters[:] = arrays.get("counters", self.counters)
        self.metrics.table[:] = arrays.get("metrics", self.metrics.table)


def train(session: Session) -> None:
    """Collect, update, log, evaluate, checkpoint, until all ranks together have taken `run.total_steps` steps."""
    run, comm, device = session.run, session.comm, session.comm.devices[0]
    config = run.algorithm
    assert isinstance(config, DQNConfig)
    policy = QPolicy(session.spec, run.network, config, seed=stream_seed(run.seed, "init"))
    dqn = DQN(run, policy, comm)
    session.begin(policy, dqn)
    dqn.copy_to_target()  # `session.begin` may have loaded another run's policy
    announce_replay(session.journal, run, policy.spec, comm.world, dqn.replay_observations.storage)
    envs = [block(run.num_envs, comm.world.num_shards, shard) for shard in comm.world.shards]
    actor = noisy_actor(policy, run.seed, envs, device) if config.noisy else actor_of(policy, device)
    explorer = EpsilonGreedy(session.spec.action)
    collector = session.make_collector(actor, explorer, noise_per_env=True, report_non_finite=True)
    dqn.warmup()
    shape = len(envs), len(envs[0])
    ActorWithState(actor, shape)(np.zeros((*shape, *policy.spec.observation_shape), policy.spec.observation_dtype))
    progress, new_steps = Progress(run.total_steps), run.num_envs * config.num_steps
    read_metrics = watch_support(session.journal, config, dqn.metrics.read)
    with session.training(progress, collector):
        while not session.over:
            explorer.epsilon = epsilon(config, progress.env_steps)
            if isinstance(actor, NoisyActor):
                actor.begin(progress.updates)
            rollouts = collector.collect()
            session.timers.enter(LEARN)
            totals = dqn.update(rollouts, session.local_statistics(), progress)
            session.timers.enter(OTHER)
            session.advance(new_steps, totals)
            session.log_evaluate_checkpoint(new_steps, read_metrics)
        session.checkpoint_last(read_metrics)
