"""Proximal policy optimization (Schulman et al., 2017, arXiv:1707.06347).

Shapes: K shards of this process, L of them on a device, T steps of a rollout, B environments of a shard, E epochs, N
transitions of a shard's part of a minibatch, P parameters of the policy, M numbers of the caller.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.algorithms.interface import ALL_SETTINGS
from lockstep.algorithms.ppo import BOUND, LOSS_METRICS, METRICS, PPOConfig
from lockstep.distributed.timers import LEARN, OTHER
from lockstep.envs.joined_groups import split_groups
from lockstep.envs.make import reads_tensors
from lockstep.experience.acting import Actor, ActorWithState, RecurrentActor
from lockstep.experience.rollout import Collector, Rollout
from lockstep.experience.sequences import draw_order
from lockstep.jax.adam import Adam, adapted, clip_by_global_norm
from lockstep.jax.batch import Batch, slots
from lockstep.jax.batch_builder import BatchBuilder
from lockstep.jax.comm import Comm
from lockstep.jax.flat import FlatParameters, Params, divisor
from lockstep.jax.loops import may_scan, scan_or_unroll, scan_while
from lockstep.jax.metrics import Metrics
from lockstep.jax.networks import Policy, actor_of
from lockstep.jax.non_finite import LossReader
from lockstep.jax.ppo_state import State
from lockstep.jax.session import Session
from lockstep.jax.symmetry import Symmetry, augmented
from lockstep.jax.tensor_rollout import TensorCollector, rollout_on_device, rollout_on_host
from lockstep.record.progress import Progress
from lockstep.run import Run
from lockstep.session.non_finite import NonFiniteError, locate_non_finite
from lockstep.session.normalizers import NormalizerError, UpdateStatistics
from lockstep.session.task_checks import check_task
from lockstep.world import stream, stream_seed


class PPO:
    """Clipped-surrogate policy gradient with a learned value baseline.

    `state`, the normalizers, and of each shard its minibatch stream and the state of a recurrent critic, persist across
    updates. `loss` and `learn` are pure functions that other compiled loops may call.
    """

    FOLLOWS = ALL_SETTINGS

    def __init__(self, run: Run, policy: Policy, comm: Comm, *, in_loop: bool = False) -> None:
        """`in_loop`: `learn` is called within a compiled loop."""
        config = run.algorithm
        assert isinstance(config, PPOConfig)
        check_task(run, policy.spec)
        self.config = config
        self.policy = policy
        self.comm = comm
        shard_envs = comm.world.shard_size(run.num_envs, "num_envs")
        self.rows = run.minibatch_rows(comm.world)
        self.sequence_length = run.sequence_length
        policy.params = comm.read(comm.broadcast(policy.params))
        self.flat = FlatParameters(policy.params)
        self.optimizer = Adam(config.adam_eps)
        self.metrics = Metrics(METRICS)
        flat_params = self.flat.join(policy.params)
        start = State.start(flat_params, self.optimizer.init(flat_params), config.learning_rate, self.metrics.zeros())
        self.state: State = comm.replicate(start)
        self.symmetry = Symmetry(config.symmetry, policy.spec) if config.symmetry else None
        self._builder = BatchBuilder(config, policy, comm, shard_envs, run.precision, self.symmetry)
        self.normalizers = self._builder.normalizers
        self._streams = [stream(run.seed, "minibatch", shard) for shard in comm.world.shards]
        self._stop_on_non_finite = run.non_finite == "stop"
        self._precision = run.precision
        self._scan = in_loop or may_scan(run, policy.spec, comm.devices[0].platform)
        self._learn_spmd = comm.spmd(self._learn_shards)

    # -- maths -----------------------------------------------------------------------------------------------------

    def loss(self, params: Params, batch: Batch, sequence_length: int = 1) -> tuple[Array, Array]:
        """The negated PPO objective as a weighted *sum* over rows [N], and weighted sums for metrics, weight first.

        rho = pi(a|s) / pi_old(a|s)
        L   = -min(rho A, clip(rho, 1 - eps, 1 + eps) A) + c_v (V(s) - target)^2 / 2 - c_e H(pi(.|s))
              + c_b sum_d max(|mean_d| - 1.1, 0)^2

        The rows are those of sequences of `sequence_length` steps, time-major.
        """
        c, weight = self.config, batch.weight
        if self.symmetry is not None:  # the metrics are those of the first rows, which were collected
            batch = augmented(batch)
        sequences = batch.sequences(sequence_length)
        parameters, value = self.policy.apply(params, batch.observation, self._precision, sequences, batch.critic)
        log_prob, entropy = self.policy.distribution.log_prob_and_entropy(params, parameters, batch.action)
        log_ratio = log_prob - batch.log_prob
        ratio = jnp.exp(log_ratio)
        clipped = jnp.clip(ratio, 1.0 - c.clip_range, 1.0 + c.clip_range)
        surrogate = jnp.minimum(ratio * batch.advantage, clipped * batch.advantage)
        value_error_squared = jnp.square(value - batch.target)
        if c.value_clip_range is not None:
            value_clipped = batch.value + jnp.clip(value - batch.value, -c.value_clip_range, c.value_clip_range)
            value_error_squared = jnp.maximum(value_error_squared, jnp.square(value_clipped - batch.target))
        objective = surrogate - 0.5 * c.value_coef * value_error_squared + c.entropy_coef * entropy
        if c.bounds_loss_coef > 0:
            mean = parameters[:, : self.policy.spec.action.width]
            beyond = jnp.maximum(jnp.abs(mean) - BOUND, 0.0)
            objective = objective - c.bounds_loss_coef * jnp.square(beyond).sum(-1)
        kl = ratio - 1.0 - log_ratio  # k3 of joschu.net/blog/kl-approx.html
        is_clipped = (clipped != ratio).astype(jnp.float32)
        value_loss = 0.5 * value_error_squared
        columns = jnp.stack([jnp.ones_like(batch.weight), -surrogate, value_loss, entropy, kl, is_clipped])
        return -jnp.dot(batch.weight, objective), columns[:, : len(weight)] @ weight

    # -- order -----------------------------------------------------------------------------------------------------

    def learn(
        self,
        state: State,
        batches: Sequence[Batch],
        orders: Array,
        is_first: Array | float = 1.0,
        is_last: Array | float = 1.0,
    ) -> State:
        """Run the epochs of an update, or some of them, on every shard of this device; call it inside `comm.spmd`.

        Args:
            state: before the update.
            batches: one for each of L shards, [T * B] rows, with normalized advantages.
            orders: [L, E, T * B] int32, the row order of each shard in each epoch.
            is_first: 1 if these are the first epochs of the update, else 0.
            is_last: 1 if these are the last ones, else 0.

        Returns:
            The state after these epochs.
        """
        state = state._replace(past_target_kl=state.past_target_kl & (is_first == 0.0))
        state = self._epochs(state, batches, orders)
        if self.config.target_kl is not None:
            is_last = jnp.maximum(is_last, state.past_target_kl.astype(jnp.float32))
        rate = state.learning_rate[None] * is_last
        return state._replace(table=self.metrics.add(state.table, ("optim/learning_rate",), rate, is_last))

    def _epochs(self, state: State, batches: Sequence[Batch], orders: Array) -> State:
        """Take a pass over the rows for each of `orders`; with `target_kl` a scan ends after the first above it."""
        orders = orders.swapaxes(0, 1)
        if self._scan and self.config.target_kl is not None:
            # The KL is over all ranks, so that all leave the loop together and none waits for the gradients of another.
            return scan_while(
                lambda s: ~s.past_target_kl, lambda s, order: self._epoch(s, batches, order)[0], state, orders
            )
        return scan_or_unroll(self._scan, lambda s, order: self._epoch(s, batches, order), state, orders)[0]

    def _epoch(self, state: State, batches: Sequence[Batch], order: Array) -> tuple[State, Array]:
        """Take one pass over the rows in `order` [L, T * B]."""
        c = self.config

        def step(state: State, rows: Array) -> tuple[State, Array]:
            parts = [batch.at(indices) for batch, indices in zip(batches, rows, strict=True)]
            state, sums = self._step(state, parts)
            return self._adapt_learning_rate(state, "minibatch", sums), sums

        parts = order.reshape(len(batches), c.num_minibatches, self.rows).swapaxes(0, 1)
        state, totals = scan_or_unroll(self._scan, step, state, parts)
        sums = totals.sum(0)
        state = state._replace(table=self._add_step_metrics(state.table, sums))
        state = self._adapt_learning_rate(state, "epoch", sums)
        if c.target_kl is not None:
            state = state._replace(past_target_kl=state.past_target_kl | (_kl(sums) > c.target_kl))
        return state, totals

    def _add_step_metrics(self, table: Array, sums: Array) -> Array:
        """The table of metrics with those of some gradient steps, given the sum of their results."""
        ends = np.cumsum([1, len(LOSS_METRICS), 1, 1])
        weight, loss_sums, norm_sum, num_taken, num_skipped = jnp.split(sums, ends)
        table = self.metrics.add(table, LOSS_METRICS, loss_sums, weight)
        table = self.metrics.add(table, ("optim/grad_norm",), norm_sum, num_taken)
        return self.metrics.add(table, ("optim/skipped",), num_skipped, num_taken + num_skipped)

    def _adapt_learning_rate(self, state: State, at: str, sums: Array) -> State:
        """Follow the KL of `sums` over all ranks, if that is the schedule; a KL of no rows, NaN, changes nothing."""
        c = self.config
        if c.learning_rate_schedule != "adaptive" or c.adapts_at != at:
            return state
        return state._replace(learning_rate=adapted(state.learning_rate, _kl(sums), c.desired_kl))

    def _step(self, state: State, parts: Sequence[Batch]) -> tuple[State, Array]:
        """Take one gradient step on every shard's part [N] of a minibatch; a no-op if any number is not finite.

        Minibatches whose global weight is 0 are skipped without being counted. Returns the state, and weight, sums,
        gradient norm, 1 if the step was taken, 1 if it was not finite.
        """
        rows = jnp.stack([self._shard_sums(state.params, part, self.sequence_length) for part in parts])
        total = self.comm.sum_shards(rows, "average_gradients")
        gradient, sums = total[: self.flat.num_parameters], total[self.flat.num_parameters :]
        # A product, as XLA divides a vector by a number in one layout and multiplies by the inverse in another.
        gradient, empty = gradient * (1.0 / divisor(sums[0])), sums[0] == 0
        gradient, norm = clip_by_global_norm(gradient, self.config.max_grad_norm)
        totals = jnp.concatenate([sums, norm[None], jnp.array([1.0, 0.0], jnp.float32)])
        # Decided from reduced values on the device: equal on every rank, without a host sync.
        skipped = ~empty & ~jnp.isfinite(totals).all()
        if self._stop_on_non_finite:  # later steps are skipped too, so that the failing parameters are preserved
            skipped = state.non_finite | (skipped & ~state.past_target_kl)
            state = state._replace(non_finite=skipped)
        if self.config.adapt_before_step:
            state = self._adapt_learning_rate(state, "step", jnp.where(skipped | state.past_target_kl, jnp.nan, sums))
        params, optimizer = self.optimizer.step(
            state.optimizer, state.params, gradient, state.learning_rate, skipped | empty | state.past_target_kl
        )
        totals = jnp.where(skipped, jnp.zeros_like(totals).at[-1].set(1.0), jnp.where(empty, 0.0, totals))
        return state._replace(params=params, optimizer=optimizer), jnp.where(state.past_target_kl, 0.0, totals)

    def _shard_sums(self, flat_params: Array, part: Batch, sequence_length: int) -> Array:
        """One shard's contribution to a step: its gradient sum [P], then its metric sums."""
        # The barriers isolate the shard's computation: other shards on this device must not change its bits.
        flat_params, part = jax.lax.optimization_barrier((flat_params, part))
        loss = partial(self.loss, sequence_length=sequence_length)
        (_, sums), gradient = jax.value_and_grad(loss, has_aux=True)(self.flat.split(flat_params), part)
        return jax.lax.optimization_barrier(jnp.concatenate([self.flat.join(gradient), sums]))

    @np.errstate(over="ignore")  # a float32 overflow skips the update, or ends the run with a NonFiniteError
    def update(self, rollouts: list[Rollout], caller_sums: np.ndarray, progress: Progress | None = None) -> np.ndarray:
        """Improve the policy on one rollout of every local shard; collective.

        Args:
            rollouts: one for each local shard.
            caller_sums: [K, M] numbers to sum over all shards in the same message.
            progress: of the run, for the learning-rate schedule; default: at its start.

        Returns:
            The sums of `caller_sums` [M].

        Raises:
            NonFiniteError: on all ranks, if `non_finite` is `stop` and a number is not finite.
        """
        c, comm, progress = self.config, self.comm, progress or Progress(1)
        batches, statistics, caller_sums = self._builder.build(self.state.params, rollouts, caller_sums)
        if statistics is None:
            if self._stop_on_non_finite:
                if self._builder.fault:
                    raise NormalizerError(*self._builder.fault, progress)
                raise self._non_finite_error(rollouts, batches, UpdateStatistics(scale=1.0), progress)
            steps = np.full(1, c.num_epochs * c.num_minibatches, np.float32)
            table = self.metrics.add(comm.read(self.state.table), ("optim/skipped",), steps, steps[0])
            self.state = self.state._replace(table=comm.replicate(table))
            return caller_sums
        orders = [
            draw_order(generator, c, self.sequence_length, rollout.reward.size).astype(np.int32)
            for generator, rollout in zip(self._streams, rollouts, strict=True)
        ]
        # Without a scan the steps are unrolled: one call per epoch keeps the compiled program small.
        calls = [slice(None)] if self._scan else [slice(i, i + 1) for i in range(c.num_epochs)]
        rate = c.learning_rate * (1.0 - progress.fraction if c.learning_rate_schedule == "linear" else 1.0)
        for i, epochs in enumerate(calls):
            host_values = _HostValues(statistics, rate, is_first=i == 0, is_last=i == len(calls) - 1)
            sharded_orders = comm.shard([order[epochs] for order in orders])
            (self.state, _), _ = self._learn_spmd((self.state, host_values.packed()), (batches, sharded_orders))
            if c.target_kl is not None and not self._scan and comm.read(self.state.past_target_kl):
                break
        # One host sync per update; acting would wait for the device anyway.
        flat_params, non_finite = comm.read((self.state.params, self.state.non_finite))
        self.policy.params = self.flat.split(flat_params)
        if non_finite:
            raise self._non_finite_error(rollouts, batches, statistics, progress)
        return caller_sums

    def warmup(self, actor: Actor | RecurrentActor, device: Any = None) -> None:
        """Compile everything that an update calls, by calling it with rows of weight 0; collective.

        `device` is where the observations of rollouts are; None is the host.
        """
        blank, num_shards = self._builder.blank(), len(self.comm.world.shards)
        seen, _ = split_groups(blank.observation[0], self.policy.spec)
        if device is not None:
            blank = rollout_on_device(blank, device)
        first = np.stack([seen] * num_shards)
        ActorWithState(actor, first.shape[:2])(first)
        batches = self._builder.batches(self.state.params, [blank] * num_shards)
        order = np.zeros((self.config.num_epochs if self._scan else 1, blank.reward.size), np.int32)
        copy = self.comm.replicate(self.comm.read(self.state))
        host_values = _HostValues(UpdateStatistics(), 0.0, is_first=False, is_last=False).packed()
        (state, _), _ = self._learn_spmd((copy, host_values), (batches, self.comm.shard([order] * num_shards)))
        self.comm.read(state.non_finite)  # wait, so that errors are raised here

    def normalized(self, batch: Batch, statistics: UpdateStatistics) -> Batch:
        """The batch with advantages, targets and old values normalized by statistics over all ranks, as configured."""
        mean, scale = statistics.mean, statistics.scale
        if self.config.normalize_advantage:
            batch = batch._replace(advantage=(batch.advantage - mean) * scale)
        mean, scale = statistics.target_mean, statistics.target_scale
        if self.config.normalize_value:
            batch = batch._replace(target=(batch.target - mean) * scale, value=(batch.value - mean) * scale)
            if (limit := self.config.value_limit) is not None:
                limited = (jnp.clip(column, -limit, limit) for column in (batch.target, batch.value))
                batch = batch._replace(**dict(zip(("target", "value"), limited, strict=True)))
        return batch

    def _learn_shards(self, shared: tuple[State, Array], own: tuple[Batch, Array]) -> tuple[Any, Any]:
        """`learn` with what `update` gives: statistics, learning rate and flags from the host, and stacked batches."""
        (state, numbers), (stacked, orders) = shared, own
        statistics, learning_rate, is_first, is_last = _HostValues.unpacked(numbers)
        if self.config.learning_rate_schedule != "adaptive":
            state = state._replace(learning_rate=learning_rate)
        batches = [self.normalized(batch, statistics) for batch in slots(stacked, len(orders))]
        explained, weight = jnp.reshape(statistics.explained, 1), statistics.weight * is_first
        table = self.metrics.add(state.table, ("value/explained_variance",), explained * is_first, weight)
        return (self.learn(state._replace(table=table), batches, orders, is_first, is_last), numbers), ()

    def read_metrics(self) -> dict[str, float]:
        """Means of the metrics since the last read; resets the table."""
        totals = self.metrics.read(self.comm.read(self.state.table))
        self.state = self.state._replace(table=self.comm.replicate(self.metrics.zeros()))
        return totals

    def shared_arrays(self) -> dict[str, np.ndarray]:
        """Copies of all state that is equal on every rank, by name, for checkpoints."""
        return self.comm.read(self.state).named(self.flat) | self._builder.shared_arrays()

    def load_shared(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Load `shared_arrays`, or a part of it such as the policy's parameters."""
        state = self.comm.read(self.state).loaded(self.flat, arrays)
        self.state, self.policy.params = self.comm.replicate(state), self.flat.split(state.params)
        self._builder.load_shared(arrays)

    def shard_state(self, k: int) -> dict[str, Any]:
        """State of local shard `k` alone."""
        state = {
            "minibatches": self._streams[k].bit_generator.state,
            "discounted": self.normalizers.discounted[k].value,
        }
        critic = self._builder.critic_states[k]
        return state | ({"critic_state": critic} if critic.size else {})

    def restore_shard(self, k: int, state: dict[str, Any]) -> None:
        """Restore local shard `k` from its `shard_state`."""
        self._streams[k].bit_generator.state = state["minibatches"]
        if "discounted" in state:
            self.normalizers.discounted[k].value[:] = state["discounted"]
        if "critic_state" in state:
            self._builder.critic_states[k] = state["critic_state"]

    def _non_finite_error(
        self, rollouts: list[Rollout], batches: Batch, statistics: UpdateStatistics, progress: Progress
    ) -> NonFiniteError:
        parts = [self.normalized(part, statistics) for part in self.comm.unshard(batches)]
        flat_params = self.comm.local(self.state.params)

        def gradient_and_sums(part: Batch) -> list[Array]:
            return jnp.split(self._shard_sums(flat_params, part, 1), [self.flat.num_parameters])

        reader = LossReader(gradient_and_sums, self.rows)
        hosts = [rollout_on_host(rollout) for rollout in rollouts]
        return locate_non_finite(self.comm, hosts, parts, progress, reader, self.rows)


class _HostValues(NamedTuple):
    """What a call of `_learn_shards` takes from the host, packed into one array: one transfer, not one per number."""

    statistics: UpdateStatistics
    learning_rate: Any
    is_first: Any
    """Whether the call has the first epoch of the update."""
    is_last: Any

    def packed(self) -> np.ndarray:
        """As float32, in the order of the fields."""
        return np.array([*self.statistics, self.learning_rate, self.is_first, self.is_last], np.float32)

    @classmethod
    def unpacked(cls, numbers: Array) -> Self:
        """The inverse of `packed`, inside compiled code."""
        *statistics, learning_rate, is_first, is_last = numbers
        return cls(UpdateStatistics(*statistics), learning_rate, is_first, is_last)


def _kl(sums: Array) -> Array:
    """The mean KL of the weighted sums of `PPO.loss`; NaN, which compares as False, if their weight is 0."""
    return sums[1 + LOSS_METRICS.index("policy/kl")] / sums[0]


def host_collector(session: Session, ppo: PPO, actor: Actor | RecurrentActor) -> Collector:
    """The collector of environments with a numpy interface."""
    return session.make_collector(
        actor,
        ppo.policy.sampler,
        observation_moments=ppo.normalizers.observations,
        with_critic=session.spec.critic_size is not None,
        report_non_finite=True,
    )


def tensor_collector(session: Session, ppo: PPO, actor: Actor | RecurrentActor) -> TensorCollector:
    """The collector of environments on torch tensors."""
    run = session.run
    return TensorCollector(
        session.world,
        session.make_tensor_envs(run.num_envs),
        actor,
        ppo.policy.sampler,
        device=session.comm.devices[0],
        num_steps=run.algorithm.num_steps,
        seed=run.seed,
        timers=session.timers,
        observation_moments=ppo.normalizers.observations,
    )


def train(session: Session) -> None:
    """Collect, update, log, evaluate, checkpoint, until all ranks together have taken `run.total_steps` steps."""
    run, comm, timers = session.run, session.comm, session.timers
    policy = Policy(session.spec, run.network, seed=stream_seed(run.seed, "init"))
    ppo = PPO(run, policy, comm)
    session.begin(policy, ppo, observation_moments=ppo.normalizers.observations, critic_moments=ppo.normalizers.critic)
    actor = actor_of(policy, comm.devices[0])
    on_tensors = reads_tensors(run.task, run.env)
    ppo.warmup(actor, comm.devices[0] if on_tensors else None)
    collector = tensor_collector(session, ppo, actor) if on_tensors else host_collector(session, ppo, actor)
    progress, new_steps = Progress(run.total_steps), run.num_envs * run.algorithm.num_steps
    with session.training(progress, collector):
        while not session.over:
            rollouts = collector.collect()
            timers.enter(LEARN)
            totals = ppo.update(rollouts, session.local_statistics(), progress)
            timers.enter(OTHER)
            session.advance(new_steps, totals)
            session.log_evaluate_checkpoint(new_steps, ppo.read_metrics)
        session.checkpoint_last(ppo.read_metrics)
