"""PPO where environments live on the device: rollouts and updates in one compiled call, n of them at a time.

Nothing leaves the devices between two looks of the host: a line of metrics, an evaluation, a checkpoint, or the proof
that all ranks agree (`check_every`), which is also how long a signal waits.

Shapes: K shards of this process, L of them on a device, T steps of a rollout, B environments of a shard, E epochs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.distributed.fingerprint import combine
from lockstep.distributed.timers import LEARN, OTHER
from lockstep.experience.episodes import EpisodeStats
from lockstep.jax import moments
from lockstep.jax.batch import Batch, slots
from lockstep.jax.collect import Collect
from lockstep.jax.device_shard import REWARD, NonFiniteValue, Shard, keys_of, nothing_told
from lockstep.jax.envs.make import make_device_env
from lockstep.jax.envs.packed import PackedEnv, unpacked
from lockstep.jax.moments import Moments
from lockstep.jax.networks import Policy
from lockstep.jax.ppo import PPO
from lockstep.jax.ppo_state import State
from lockstep.jax.prepare import batch_of
from lockstep.jax.session import Session
from lockstep.record.episodes import KEPT, RecentEpisodes
from lockstep.record.progress import Progress
from lockstep.run import Run
from lockstep.session.non_finite import Finding, NonFiniteError, nearest
from lockstep.session.normalizers import NormalizerError, begin
from lockstep.world import stream_seed

_LOW_BITS = 14


class Shared(NamedTuple):
    """What is the same on all devices while they compute."""

    state: State
    normalizers: dict[str, Moments]
    update: Array
    """int32: updates of the run so far."""
    left: Array
    """int32: updates still to make in this call."""
    bad: Array
    """int32: the first number whose moments would not be finite after the last update, -1 for none: see `merged`."""


def permutations(key: Array, count: int, size: int) -> Array:
    """`count` random orders [count, size] int32 of `range(size)`."""
    # Sorting numbers alone is ten times faster on CPUs than sorting places by them: the place is in the low bits. Equal
    # high bits, which would prefer low places, are rare as long as there are many.
    low = max(size - 1, 1).bit_length()
    bits = jax.random.bits(key, (count, size))
    if low > _LOW_BITS:
        return jnp.argsort(bits, -1).astype(jnp.int32)
    places = jnp.broadcast_to(jnp.arange(size, dtype=jnp.uint32), bits.shape)
    return (jnp.sort((bits >> low << low) | places, -1) & ((1 << low) - 1)).astype(jnp.int32)


class DeviceCollector:
    """The environments of this process' shards, on its devices, and the loop that learns from them.

    Args:
        run: the config.
        env: one environment.
        ppo: who learns.

    Attributes:
        fingerprints: of each local shard's first rollout.
    """

    def __init__(self, run: Run, env: PackedEnv, ppo: PPO) -> None:
        config, comm = ppo.config, ppo.comm
        world, size = comm.world, comm.world.shard_size(run.num_envs, "num_envs")
        self._run, self._ppo, self._comm, self._size = run, ppo, comm, size
        self._batch_size = run.num_envs * config.num_steps
        self._collect = Collect(env, ppo.policy, num_steps=config.num_steps, shard_envs=size, gamma=config.gamma)
        start = jax.jit(self._collect.begin)
        with jax.default_device(comm.devices[0]):
            parts = [jax.device_get(start(*keys_of(run.seed, shard, size))) for shard in world.shards]
        # The first update has these rows, too: its variance is not small where they are far from its mean. Of returns
        # nothing is known yet; rewards are cut at 10 deviations, so that a deviation that is small need not be exact.
        seen = [] if ppo.observations is None else [(ppo.observations, [part.observation for part in parts])]
        begin(comm, seen, [np.ones(size)] * len(parts))
        self._own: Shard = comm.shard(parts)
        self._updates = comm.spmd(self._make_updates)
        self.episodes = [EpisodeStats(size) for _ in world.shards]  # always empty: see `tell`

    # -- in one compiled call ------------------------------------------------------------------------------------------

    def _make_updates(self, shared: Shared, own: Shard) -> tuple[Shared, Shard]:
        """Make updates until none is left, or a number is not finite and the run is to stop for it."""
        shards = [shard._replace(totals=nothing_told()) for shard in slots(own, len(own.first))]
        shared, shards = jax.lax.while_loop(
            lambda carry: (carry[0].left > 0) & ~carry[0].state.halted, self._make_update, (shared, shards)
        )
        return shared, jax.tree.map(lambda *leaves: jnp.stack(leaves), *shards)

    def _make_update(self, carry: tuple[Shared, list[Shard]]) -> tuple[Shared, list[Shard]]:
        (state, normalizers, update, left, _), shards = carry
        ppo, c = self._ppo, self._ppo.config
        if c.learning_rate_schedule == "linear":
            ahead = 1.0 - update.astype(jnp.float32) * (self._batch_size / self._run.total_steps)
            state = state._replace(learning_rate=c.learning_rate * jnp.maximum(ahead, 0.0))
        batches, rows, orders, after = list[Batch](), list[Array](), list[Array](), list[Shard]()
        for shard in shards:
            # Compiled as if it were alone: other shards on this device must not change its bits.
            alone = jax.lax.optimization_barrier((state.values, normalizers, shard, update))
            found = jax.lax.optimization_barrier(self._make_batch(*alone))
            for column, part in zip((after, batches, rows, orders), found, strict=True):
                column.append(part)
        total = self._comm.sum_shards(jnp.stack(rows), "moments")
        finite = jnp.isfinite(total).all()
        normalizers, bad = moments.merged(normalizers, total[5:], finite)
        finite &= bad < 0
        state, scale = self._measure(state, total, finite)
        if c.normalize_advantage:
            batches = [x._replace(advantage=(x.advantage - scale[0]) * scale[1]) for x in batches]
        batches = [x._replace(advantage=x.advantage + jnp.where(finite, 0.0, jnp.nan)) for x in batches]
        state, _ = ppo.learn(state, batches, jnp.stack(orders))
        return Shared(state, normalizers, update + 1, left - 1, bad), after

    def _make_batch(
        self, values: Array, normalizers: Mapping[str, Moments], shard: Shard, update: Array
    ) -> tuple[Shard, Batch, Array, Array]:
        """A shard's rollout, what to learn from it, its sums for all shards, and its orders of rows [E, T * B]."""
        params = self._ppo.flat.split(values)
        shard, steps, sums = self._collect.rollout(params, normalizers, shard, update)
        batch = batch_of(self._ppo.config, self._ppo.policy, params, steps, self._run.precision)
        columns = jnp.stack([jnp.ones_like(batch.target), batch.advantage, batch.target])
        row = jnp.concatenate([columns.sum(1), jnp.square(columns[1:]).sum(1), sums])
        row = row + jnp.where(shard.fault.what > 0, jnp.nan, 0.0)  # the same on every rank, once it is summed
        key = jax.random.fold_in(unpacked(shard.order_key), update)
        return shard, batch, row, permutations(key, self._ppo.config.num_epochs, len(batch.target))

    def _measure(self, state: State, total: Array, finite: Array) -> tuple[State, Array]:
        """Mean and scale of the advantages, from the sums over all shards; and how much the values explain."""
        mean, target_mean, square, target_square = total[1:5] / total[0]
        variance = jnp.maximum(target_square - jnp.square(target_mean), 1e-8)
        scale = 1.0 / (jnp.sqrt(jnp.maximum(square - jnp.square(mean), 0.0)) + 1e-8)
        # The advantage is what the value left unexplained.
        explained = jnp.where(finite, 1.0 - square / variance, 0.0)
        table = self._ppo.metrics.add(
            state.table, ("value/explained_variance",), explained[None], finite.astype(jnp.float32)
        )
        halted = state.halted | (~finite & (self._run.non_finite == "stop"))
        return state._replace(table=table, halted=halted), jnp.stack([mean, scale])

    # -- what the host sees of it --------------------------------------------------------------------------------------

    def rehearse(self) -> None:
        """Compile, and leave everything as it is: no update is asked for; *collective*."""
        self._call(0, 0)

    def _call(self, update: int, count: int) -> tuple[dict[str, Moments], bool, int, int]:
        """Make updates. Returns the normalizers, whether the run is to stop, how many were not made, and `bad`."""
        ppo, comm = self._ppo, self._comm
        held = {name: moments.read(host) for name, host in ppo.normalizers.named().items()}
        normalizers, *counters = comm.replicate((held, np.int32(update), np.int32(count), np.int32(-1)))
        shared, self._own = self._updates(Shared(ppo.state, normalizers, *counters), self._own)
        ppo.state = shared.state
        totals = (ppo.state.values, ppo.state.halted, shared.left, shared.normalizers, shared.bad)
        values, halted, left, found, bad = comm.read(totals)
        ppo.policy.params = ppo.flat.split(values)
        return found, bool(halted), int(left), int(bad)

    def advance(self, progress: Progress) -> int:
        """Collect and learn until the host has something to do; *collective*. Returns the number of updates.

        Raises:
            NonFiniteError: on all ranks, if `non_finite` is `stop` and a number is not finite.
        """
        count = self._until_due(progress)
        found, halted, left, bad = self._call(progress.updates, count)
        for name, host in self._ppo.normalizers.named().items():
            moments.write(found[name], host)
        if halted:
            raise self._blame(progress.updates + count - left - 1, bad)
        return count

    def _until_due(self, progress: Progress) -> int:
        """How many updates there are until the host looks."""
        run, size = self._run, self._batch_size
        periods = filter(None, (run.log_every, run.evaluate_every, run.checkpoint_every))
        ends = [(progress.env_steps // every + 1) * every for every in periods]
        steps = min([run.total_steps, *ends]) - progress.env_steps
        return max(min(-(-steps // size), run.check_every - progress.updates % run.check_every), 1)

    def tell(self, statistics: np.ndarray, recent: Sequence[RecentEpisodes], first: int) -> None:
        """Number, returns and lengths of the episodes that ended in `advance`.

        Args:
            statistics: [K, ...] the first three columns are written.
            recent: of each local shard; the newest episodes are added.
            first: number of the first update of `advance`.
        """
        for k, shard in enumerate(self._comm.collect(self._own)):
            totals = shard.totals
            statistics[k, :3] = totals.ended, totals.returns, totals.lengths
            kept = min(int(totals.ended), KEPT)
            recent[k].count += int(totals.ended) - kept
            for i in range(KEPT - kept, KEPT):
                recent[k].add(int(totals.updates[i]), totals.recent[i : i + 1])

    @property
    def fingerprints(self) -> list[str]:
        """Of each local shard's first rollout: what it saw and did."""
        return [f"{int(shard.first):08x}" for shard in self._comm.collect(self._own)]

    def fingerprint(self) -> str:
        """Of this process' first rollout."""
        return combine(self.fingerprints)

    def shard_state(self, k: int) -> dict[str, Any]:
        """Where local shard number `k` stands between two updates."""
        shard: Shard = self._comm.collect(self._own)[k]
        names = ("observation", "returned", "length", "discounted", "first")
        return {"state": list(shard.state)} | {name: getattr(shard, name) for name in names}

    def restore_shard(self, k: int, state: dict[str, Any], step: int) -> bool:
        """Continue local shard number `k` from what `shard_state` told; always with the bits it would have had."""
        del step
        parts: list[Shard] = self._comm.collect(self._own)
        changed = {name: np.asarray(state[name], getattr(parts[k], name).dtype) for name in state if name != "state"}
        held = tuple(np.asarray(new, old.dtype) for new, old in zip(state["state"], parts[k].state, strict=True))
        parts[k] = parts[k]._replace(state=held, **changed)
        self._own = self._comm.shard(parts)
        return True

    def _blame(self, update: int, bad: int) -> NonFiniteError:
        """The error that names the environment, if it was one, or the normalizer; *collective*."""
        comm = self._comm
        found: dict[int, Finding] = {}
        for shard, part in zip(comm.world.shards, comm.collect(self._own), strict=True):
            fault: NonFiniteValue = part.fault
            if fault.what:
                what = "a reward" if fault.what == REWARD else "an observation"
                env = shard * self._size + int(fault.env)
                words = f"environment {env} gave {what} that is not finite ({float(fault.value)})"
                found[shard] = Finding(0, int(fault.step), env, words)
        cause = nearest(comm, found)
        where = f"update {update + 1} (non_finite=stop)"
        if cause is None and bad >= 0:
            columns = [(name, i) for name, m in self._ppo.normalizers.named().items() for i in range(len(m.mean))]
            return NormalizerError(*columns[bad], Progress(self._run.total_steps, updates=update))
        if cause is None:
            return NonFiniteError(
                f"loss or gradient is not finite in {where}, and all that the environments gave is; try a smaller "
                "learning_rate, or non_finite=skip",
                None,
                {},
            )
        return NonFiniteError(
            f"{cause.description} in step {cause.step} of the rollout of {where}; "
            "look for a division by 0 or a diverging simulation",
            cause.rank,
            {},
        )


def train(session: Session) -> None:
    """Collect and learn on the devices, tell, keep, until all ranks together have taken `run.total_steps` steps."""
    run, comm, timers = session.run, session.comm, session.timers
    policy = Policy(session.spec, run.network, seed=stream_seed(run.seed, "init"))
    ppo = PPO(run, policy, comm)
    env = PackedEnv(make_device_env(run.task, run.env))
    session.begin(policy, ppo.observations, ppo)
    collector = DeviceCollector(run, env, ppo)
    collector.rehearse()
    progress, batch_size = Progress(run.total_steps), run.num_envs * ppo.config.num_steps
    with session.training(progress, collector):
        while not session.over:
            timers.enter(LEARN)
            count = collector.advance(progress)
            timers.enter(OTHER)
            statistics = session.local_statistics()
            collector.tell(statistics, session.journal.episodes, progress.updates)
            session.advance(count * batch_size, comm.sum_statistics(statistics, "facts"), updates=count)
            if progress.due(run.log_every, count * batch_size):
                session.log(ppo.read_metrics())
            if progress.due(run.evaluate_every, count * batch_size):
                session.evaluate()
            session.checkpoint_if_due(count * batch_size)
        session.checkpoint_last(ppo.read_metrics)
