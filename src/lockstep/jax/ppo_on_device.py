"""PPO with environments on the device: one compiled call runs several rollouts and updates.

The host synchronizes with the devices only for metrics, evaluations, checkpoints and the check that all ranks agree
(`check_every`). A signal waits until the next of these.

Shapes: K shards of this process, L of them on a device, T steps of a rollout, B environments of a shard, E epochs.
"""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.distributed.timers import LEARN, OTHER
from lockstep.experience.sequences import rows_of_sequences
from lockstep.jax import moments
from lockstep.jax.batch import Batch, slots
from lockstep.jax.batch_builder import batch_of
from lockstep.jax.device_rollout import DeviceRollout
from lockstep.jax.device_shard import Shard, keys_of, no_episodes
from lockstep.jax.device_source import DeviceSource
from lockstep.jax.envs.make import make_device_env
from lockstep.jax.envs.packed import PackedEnv, wrap_key
from lockstep.jax.moments import Moments
from lockstep.jax.networks import Policy
from lockstep.jax.permutation import permutations
from lockstep.jax.ppo import PPO
from lockstep.jax.ppo_state import State
from lockstep.jax.session import Session
from lockstep.record.progress import Progress
from lockstep.run import Run
from lockstep.session.normalizers import NormalizerError, UpdateStatistics, explained_variance, set_first_means
from lockstep.world import stream_seed

_CALL_PART = 0.2
"""How long a call may take, of `timeout_s`."""


class PPOShared(NamedTuple):
    """State that is replicated on all devices."""

    state: State
    normalizers: dict[str, Moments]
    update: Array
    """int32: updates of the run so far."""
    earlier: Array
    """float32: environment steps of the run so far, in rollouts of the present size, less `update`. It is 0 unless the
    run was resumed with another `num_steps`. It is the same in all calls, so that their lengths, which depend on the
    time that they take, change no learning rate."""
    left: Array
    """int32: updates left in this call."""
    bad: Array
    """int32: the first normalizer column whose moments would overflow in the last update, -1 for none; see `merged`."""


class PPOOutcome(NamedTuple):
    """What the host reads after a compiled call."""

    normalizers: dict[str, Moments]
    non_finite: bool
    """Whether a number was not finite and the run must stop."""
    left: int
    """Updates left."""
    bad: int
    """As `PPOShared.bad`."""


class PPODeviceLoop(DeviceSource):
    """The environments of this process' shards, on its devices, and the compiled loop that learns from them.

    Args:
        run: the config.
        env: one environment.
        ppo: the learner.
    """

    def __init__(self, run: Run, env: PackedEnv, ppo: PPO) -> None:
        super().__init__(run, ppo.comm, ppo.config.num_steps)
        config, comm, world, size = ppo.config, ppo.comm, ppo.comm.world, self._size
        self._ppo = ppo
        self._rollout = DeviceRollout(
            env, ppo.policy, num_steps=config.num_steps, shard_envs=size, gamma=config.gamma,
            reward_scale=config.reward_scale, observation_limit=config.observation_limit, symmetry=ppo.symmetry,
        )  # fmt: skip
        self._longest_call: int | None = None
        """Updates of a call, at most; None until the time of one is known. The watch sees no progress in a call."""
        start = jax.jit(self._rollout.begin)
        with jax.default_device(comm.devices[0]):
            parts = [jax.device_get(start(*keys_of(run.seed, shard, size))) for shard in world.shards]
        # The observation normalizer starts from the first observations. The return normalizer has no data yet, but
        # normalized rewards are clipped at 10 standard deviations, which bounds the effect of a small first one.
        hosts = (ppo.normalizers.observations, ppo.normalizers.critic_observations)
        first = [(host, [p.observation[i] for p in parts]) for i, host in enumerate(hosts) if host is not None]
        set_first_means(comm, first, [np.ones(size)] * len(parts))
        self._own: Shard = comm.shard(parts)
        self._updates = comm.spmd(self._run_updates, donate_own=True)  # environments and rollouts: most of the memory

    # -- in one compiled call ------------------------------------------------------------------------------------------

    def _run_updates(self, shared: PPOShared, own: Shard) -> tuple[PPOShared, Shard]:
        """Run updates until none is left, or until a number is not finite and `non_finite` is `stop`."""
        shards = [shard._replace(totals=no_episodes()) for shard in slots(own, len(own.first))]
        shared, shards = jax.lax.while_loop(
            lambda carry: (carry[0].left > 0) & ~carry[0].state.non_finite, self._update, (shared, shards)
        )
        return shared, jax.tree.map(lambda *leaves: jnp.stack(leaves), *shards)

    def _update(self, carry: tuple[PPOShared, list[Shard]]) -> tuple[PPOShared, list[Shard]]:
        (state, normalizers, update, earlier, left, _), shards = carry
        ppo, c = self._ppo, self._ppo.config
        if c.learning_rate_schedule == "linear":
            remaining = 1.0 - (update.astype(jnp.float32) + earlier) * (self._new_steps / self._run.total_steps)
            state = state._replace(learning_rate=c.learning_rate * jnp.maximum(remaining, 0.0))
        new_shards, batches, rows, orders = list[Shard](), list[Batch](), list[Array](), list[Array]()
        for shard in shards:
            # The barriers isolate the shard's computation: other shards on this device must not change its bits.
            isolated = jax.lax.optimization_barrier((state.params, normalizers, shard, update))
            new_shard, batch, row, order = jax.lax.optimization_barrier(self._make_batch(*isolated))
            new_shards.append(new_shard)
            batches.append(batch)
            rows.append(row)
            orders.append(order)
        total = self._comm.sum_shards(jnp.stack(rows), "moments")
        means = total[1:3] * (1.0 / total[0])
        # Squares of deviations from the mean: the difference of float32 squares would lose a small deviation.
        rows = [jax.lax.optimization_barrier(self._squares(batch, normalizers, means)) for batch in batches]
        variances = self._comm.sum_shards(jnp.stack(rows), "variances") * (1.0 / total[0])
        finite = jnp.isfinite(total).all() & jnp.isfinite(variances).all()
        target_mean = means[1] + (normalizers["values"].mean[0] if c.normalize_value else 0.0)
        sums = [total[4:]] + ([total[jnp.array([0, 2, 3])]] if c.normalize_value else [])
        normalizers, bad = moments.merged(normalizers, jnp.concatenate(sums), finite)
        finite &= bad < 0
        state, statistics = self._measure(state, (means[0], target_mean), variances, finite)
        if c.normalize_value:
            center, deviation = normalizers["values"].center_and_deviation
            statistics = statistics._replace(target_mean=center, target_scale=1.0 / deviation)
        batches = [ppo.normalized(batch, statistics) for batch in batches]
        # NaN advantages make `learn` skip every step of an update whose sums are not finite.
        poison = jnp.where(finite, 0.0, jnp.nan)
        batches = [batch._replace(advantage=batch.advantage + poison) for batch in batches]
        state = ppo.learn(state, batches, jnp.stack(orders))
        return PPOShared(state, normalizers, update + 1, earlier, left - 1, bad), new_shards

    def _make_batch(
        self, flat_params: Array, normalizers: Mapping[str, Moments], shard: Shard, update: Array
    ) -> tuple[Shard, Batch, Array, Array]:
        """Collect a shard's rollout: the shard after it, its batch, its sums, and its row orders [E, T * B]."""
        params = self._ppo.flat.split(flat_params)
        shard, steps, sums = self._rollout.rollout(params, normalizers, shard, update)
        values_of = normalizers.get("values")
        targets = None if values_of is None else values_of.center_and_deviation
        batch, critic_memory = batch_of(self._ppo.config, self._ppo.policy, params, steps, self._run.precision, targets)
        if critic_memory is not None:
            shard = self._rollout.remember(shard, steps, critic_memory)
        advantage, target = self._centred(batch, normalizers)
        columns = jnp.stack([jnp.ones_like(target), advantage, target, jnp.square(target)])
        row = jnp.concatenate([columns.sum(1), sums])
        row = row + jnp.where(shard.fault.what > 0, jnp.nan, 0.0)  # the sum carries the fault to every rank
        key = jax.random.fold_in(wrap_key(shard.order_key), update)
        return shard, batch, row, self._draw_order(key, len(batch.target))

    def _centred(self, batch: Batch, normalizers: Mapping[str, Moments]) -> tuple[Array, Array]:
        """The advantages, and the targets relative to their mean so far, if that is kept; [T * B] each."""
        values_of = normalizers.get("values")
        target = batch.target if values_of is None else values_of.centred(batch.target[:, None])[:, 0]
        return batch.advantage, target

    def _squares(self, batch: Batch, normalizers: Mapping[str, Moments], means: Array) -> Array:
        """The sums of a shard's squared deviations [2] of advantages and targets from the `means` of all shards [2]."""
        return jnp.square(jnp.stack(self._centred(batch, normalizers)) - means[:, None]).sum(1)

    def _draw_order(self, key: Array, rows: int) -> Array:
        """The order of a shard's rows in each epoch [E, T * B]; those of a sequence follow one another."""
        c, length = self._ppo.config, self._ppo.sequence_length
        order = permutations(key, c.num_epochs, rows // length)
        return rows_of_sequences(order, length=length, num_envs=self._size, num_minibatches=c.num_minibatches)

    def _measure(
        self, state: State, means: tuple[Array, Array], variances: Array, finite: Array
    ) -> tuple[State, UpdateStatistics]:
        """Statistics of the advantages of all shards; adds the explained variance to the table.

        Args:
            state: of the learner.
            means: of advantages and targets.
            variances: of both [2].
            finite: whether all these are finite.
        """
        (mean, target_mean), (variance, target_variance) = means, variances
        scale = 1.0 / (jnp.sqrt(variance) + 1e-8)
        # The advantage is the residual of the value.
        residual = variance + jnp.square(mean)
        explained = jnp.where(finite, explained_variance(residual, target_variance, target_mean, jnp), 0.0)
        table = self._ppo.metrics.add(
            state.table, ("value/explained_variance",), explained[None], finite.astype(jnp.float32)
        )
        non_finite = state.non_finite | (~finite & (self._run.non_finite == "stop"))
        return state._replace(table=table, non_finite=non_finite), UpdateStatistics(*cast(Any, (mean, scale)))

    # -- on the host ---------------------------------------------------------------------------------------------------

    def warmup(self) -> None:
        """Compile, by a call that makes no update; *collective*."""
        self._call(Progress(self._run.total_steps), 0)

    def _call(self, progress: Progress, count: int) -> PPOOutcome:
        """Make `count` updates."""
        ppo, comm = self._ppo, self._comm
        on_host = {name: moments.read(host) for name, host in ppo.normalizers.named().items()}
        earlier = (progress.env_steps - progress.updates * self._new_steps) / self._new_steps
        counters = (np.int32(progress.updates), np.float32(earlier), np.int32(count))
        rate = np.float32(ppo.config.learning_rate)
        rate, normalizers, *counters = comm.inputs((rate, on_host, *counters, np.int32(-1)))
        constant = ppo.config.learning_rate_schedule == "constant"
        state = ppo.state._replace(learning_rate=rate) if constant else ppo.state
        shared, self._own = self._updates(PPOShared(state, normalizers, *counters), self._own)
        ppo.state = shared.state
        outputs = (ppo.state.params, ppo.state.non_finite, shared.left, shared.normalizers, shared.bad)
        flat_params, non_finite, left, normalizers, bad = comm.read(outputs)
        ppo.policy.params = ppo.flat.split(flat_params)
        return PPOOutcome(normalizers, bool(non_finite), int(left), int(bad))

    def run_until_due(self, progress: Progress) -> int:
        """Collect and learn until the next host synchronization; *collective*. Returns the number of updates.

        Raises:
            NonFiniteError: on all ranks, if `non_finite` is `stop` and a number is not finite.
        """
        count, started = min(self.until_due(progress), self._longest_call or 1), time.monotonic()
        outcome = self._call(progress, count)
        for name, host in self._ppo.normalizers.named().items():
            moments.write(outcome.normalizers[name], host)
        if outcome.non_finite:
            update = progress.updates + count - outcome.left - 1
            raise self.non_finite_error(update, self._normalizer_error(update, outcome.bad))
        if self._longest_call is None:
            slowest = max(self._comm.gather_object((time.monotonic() - started) / count, "first call"))
            self._longest_call = max(int(_CALL_PART * self._run.timeout_s / slowest), 1)
        return count

    def _normalizer_error(self, update: int, bad: int) -> NormalizerError | None:
        """The error that names the normalizer column `bad`, whose moments would overflow; None for -1."""
        if bad < 0:
            return None
        columns = [(name, i) for name, m in self._ppo.normalizers.named().items() for i in range(len(m.mean))]
        return NormalizerError(*columns[bad], Progress(self._run.total_steps, updates=update))


def train(session: Session) -> None:
    """Collect and learn on the devices until all ranks together have taken `run.total_steps` steps."""
    run, comm, timers = session.run, session.comm, session.timers
    session.check_shards(run.num_envs)
    policy = Policy(session.spec, run.network, seed=stream_seed(run.seed, "init"))
    ppo = PPO(run, policy, comm, in_loop=True)
    env = PackedEnv(make_device_env(run.task, run.env))
    session.begin(policy, ppo, observation_moments=ppo.normalizers.observations, critic_moments=ppo.normalizers.critic)
    loop = PPODeviceLoop(run, env, ppo)
    loop.warmup()
    progress, new_steps = Progress(run.total_steps), run.num_envs * ppo.config.num_steps
    with session.training(progress, loop):
        while not session.over:
            timers.enter(LEARN)
            count = loop.run_until_due(progress)
            timers.enter(OTHER)
            statistics = session.local_statistics()
            loop.report_episodes(statistics, session.journal.episodes)
            session.advance(count * new_steps, comm.sum_statistics(statistics, "statistics"), updates=count)
            session.log_evaluate_checkpoint(count * new_steps, ppo.read_metrics)
        session.checkpoint_last(ppo.read_metrics)
