"""SAC and TD3 with environments on the device: one compiled call runs several rollouts and their gradient steps.

The host synchronizes with the devices only for metrics, evaluations, checkpoints and the check that all ranks agree
(`check_every`). A signal waits until the next of these.

Shapes: K shards of this process, L of them on a device, N transitions of a shard's part of a minibatch, U updates
of a call at most.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.distributed.timers import LEARN, OTHER
from lockstep.errors import ConfigError
from lockstep.experience.memory import format_bytes, smaller_capacity
from lockstep.jax.actor_critic import State
from lockstep.jax.batch import slots
from lockstep.jax.continuous_policy import ContinuousPolicy
from lockstep.jax.device_replay import DeviceReplay, ReplayRows
from lockstep.jax.device_shard import Shard, first_shard, keys_of, no_episodes
from lockstep.jax.device_source import DeviceSource
from lockstep.jax.device_transitions import TransitionRollout
from lockstep.jax.envs.make import make_device_env
from lockstep.jax.envs.packed import PackedEnv, wrap_key
from lockstep.jax.hardware import free_memory
from lockstep.jax.sac import SAC
from lockstep.jax.session import Session
from lockstep.jax.td3 import TD3
from lockstep.jax.transitions import ActorCriticPart
from lockstep.record.progress import Progress
from lockstep.run import Run
from lockstep.session.task_checks import check_task
from lockstep.system.memory import usable_memory
from lockstep.world import stream, stream_seed

_MAX_STEPS, _FIRST_STEPS = 1000, 64
"""Gradient steps of a compiled call, and of the first ones. The watch for stalls sees a rank only between calls."""
_CALL_PART = 0.2
"""Of `timeout_s`, the most that a call is to take."""


class ReplayShared(NamedTuple):
    """State that is replicated on all devices."""

    state: State
    non_finite: Array
    """Whether a number was not finite and the run must stop."""
    update: Array
    """int32: updates of the run so far."""
    rollouts: Array
    """float32: environment steps of the run so far, in rollouts of the present size; equal to `update` unless the run
    was resumed with another `num_steps`."""
    random_until: Array
    """float32: actions are random in rollouts before this one."""
    left: Array
    """int32: updates left in this call."""
    due: Array
    """[U] int32: gradient steps due after each update of this call, right-aligned: the last entry belongs to the last
    update."""
    taken: Array
    """int32: gradient steps of the run so far."""
    counted: Array
    """Sums over this call's updates: transitions in all buffers, share of rollouts that were not stored, learning rate
    where steps were due, and 1 there."""


class ReplayOutcome(NamedTuple):
    """What the host reads after a compiled call."""

    taken: int
    """Gradient steps of the call."""
    counted: np.ndarray
    """As `ReplayShared.counted`."""
    non_finite: bool
    """Whether a number was not finite and the run must stop."""
    left: int
    """Updates left."""


class ReplayDeviceLoop(DeviceSource):
    """The environments and the transitions of this process' shards on its devices, and the loop that learns from them.

    Args:
        run: the config.
        env: one environment.
        learner: SAC or TD3, made for environments on the device.
    """

    def __init__(self, run: Run, env: PackedEnv, learner: SAC | TD3) -> None:
        config, comm = learner.config, learner.comm
        super().__init__(run, comm, config.num_steps)
        self._learner, self._config, world = learner, config, comm.world
        self._rollout = TransitionRollout(env, learner.policy, config.num_steps, self._size)
        capacity = world.shard_size(config.capacity, "capacity")
        self._rows = ReplayRows(config, env.spec, self._size, capacity, learner.rows)
        self._check_memory()
        start = jax.jit(lambda *keys: first_shard(env, *keys))
        with jax.default_device(comm.devices[0]):
            parts = [jax.device_get(start(*keys_of(run.seed, shard, self._size))) for shard in world.shards]
        self._own: Shard = comm.shard(parts)
        self._replay: DeviceReplay = comm.shard([self._rows.empty()] * len(parts))
        self._restored: list[DeviceReplay] = []
        """Replays of local shards from a checkpoint, until the last one is read."""
        self._critics_key = stream(run.seed, "target critics on device").integers(0, 1 << 32, 2, np.uint32)
        self._per_update = max(config.gradient_steps(run.num_envs), 1.0)
        self._calls = max(int(_MAX_STEPS // self._per_update), 1)
        self._most_steps = min(_FIRST_STEPS, _MAX_STEPS)
        """Gradient steps of a call: once one was timed, as many as fit into the time of a call."""
        self._timed = False
        self._splits = self._per_update > self._most_steps
        """Whether the gradient steps of an update may take several calls."""
        self._updates = comm.spmd(self._run_updates, donate_own=True)
        self._more_steps = comm.spmd(self._take_more_steps, donate_own=True)

    def _check_memory(self) -> None:
        """Raise `ConfigError` on all ranks if a rank's buffers do not fit; *collective*.

        A checkpoint holds a slice of each shard, cut on its device, and the writer's copy of it, both on the host.
        """
        comm, config, saved = self._comm, self._config, self._config.checkpoint_replay
        whole = self._rows.num_bytes * comm.num_slots
        on_host = whole * len(comm.devices) * comm.world.local_size  # all ranks of a host share its memory
        of_device, host = free_memory(comm.devices[0]), "of this host's memory"
        if of_device is None:
            budgets = [(host, on_host, 2 * on_host * saved, usable_memory())]
        else:
            of_copy = self._rows.num_bytes * saved
            budgets = [
                ("of each GPU's memory", whole, of_copy, of_device),
                (host, on_host, on_host * saved, usable_memory()),
            ]
        problem = ""
        for where, buffers, copies, free in budgets:
            wanted = buffers + copies
            if free is None or wanted <= free or problem:
                continue
            fitting = smaller_capacity(
                config.capacity, free / wanted, num_shards=comm.world.num_shards, batch_size=config.batch_size
            )
            ways = [] if fitting is None else [f"algorithm.capacity={fitting} or less"]
            ways += ["algorithm.checkpoint_replay=false"] if copies and buffers <= free else []
            problem = (
                f"algorithm.capacity={config.capacity} needs {format_bytes(wanted)} {where} for environments on the "
                f"device, and {format_bytes(free)} are free; use {' or '.join([*ways, 'env.placement=host'])}"
            )
        if problems := [one for one in comm.gather_object(problem, "replay") if one]:
            raise ConfigError(problems[0])

    # -- in one compiled call ------------------------------------------------------------------------------------------

    def _run_updates(
        self, shared: ReplayShared, own: tuple[Shard, DeviceReplay]
    ) -> tuple[ReplayShared, tuple[Shard, DeviceReplay]]:
        """Run updates until none is left, or until a number is not finite and `non_finite` is `stop`."""
        shards, replay = own
        each = [shard._replace(totals=no_episodes()) for shard in slots(shards, self._comm.num_slots)]
        shared, each, replay = jax.lax.while_loop(
            lambda carry: (carry[0].left > 0) & ~carry[0].non_finite, self._update, (shared, each, replay)
        )
        return shared, (jax.tree.map(lambda *leaves: jnp.stack(leaves), *each), replay)

    def _update(
        self, carry: tuple[ReplayShared, list[Shard], DeviceReplay]
    ) -> tuple[ReplayShared, list[Shard], DeviceReplay]:
        shared, shards, replay = carry
        run, config, learner = self._run, self._config, self._learner
        state, update, stops = shared.state, shared.update, run.non_finite == "stop"
        random = shared.rollouts < shared.random_until
        new_shards, statistics = list[Shard](), list[Array]()
        for slot, shard in enumerate(shards):
            # The barriers isolate the shard's computation: other shards on this device must not change its bits.
            flat_params, shard, number = jax.lax.optimization_barrier((state.actor_params, shard, update))
            rollout = self._rollout.rollout(learner.flat_actor.split(flat_params), shard, number, random)
            new_shard, steps = jax.lax.optimization_barrier(rollout)
            finite = new_shard.fault.what == 0
            replay = self._rows.write(replay, slot, steps, finite)
            size = self._rows.size(replay, slot)
            statistics.append(jnp.stack([~finite, size == 0, size]).astype(jnp.float32))
            new_shards.append(new_shard)
        faults, unready, size = self._comm.sum_shards(jnp.stack(statistics), "statistics")
        non_finite = shared.non_finite | ((faults > 0) & stops)
        due = jnp.where(non_finite | (unready > 0), 0, shared.due[len(shared.due) - shared.left])
        if config.learning_rate_schedule == "linear":
            remaining = 1.0 - shared.rollouts * (self._new_steps / run.total_steps)
            state = state._replace(learning_rates=learner.initial_rates * jnp.maximum(remaining, 0.0))
        shared = self._take_steps(shared._replace(state=state, non_finite=non_finite), new_shards, replay, due)
        share, learned = faults * (1.0 / self._comm.world.num_shards), (due > 0).astype(jnp.float32)
        counted = shared.counted + jnp.stack([size, share, learned * shared.state.learning_rates[0], learned])
        shared = shared._replace(
            update=update + 1, rollouts=shared.rollouts + 1.0, left=shared.left - 1, counted=counted
        )
        return shared, new_shards, replay

    def _take_more_steps(
        self, shared: ReplayShared, own: tuple[Shard, DeviceReplay]
    ) -> tuple[ReplayShared, tuple[Shard, DeviceReplay]]:
        """Take further gradient steps of an update that is too long for one call."""
        shards, replay = own
        return self._take_steps(shared, slots(shards, self._comm.num_slots), replay, shared.due[-1]), own

    def _take_steps(self, shared: ReplayShared, shards: list[Shard], replay: DeviceReplay, due: Array) -> ReplayShared:
        """Take `due` gradient steps."""

        def step(number: Array, state: State) -> State:
            return self._take_step(state, replay, shards, shared.taken + number + 1)

        state = jax.lax.fori_loop(0, due, step, shared.state)
        non_finite = shared.non_finite | ((state.sums[-1] > 0) & (self._run.non_finite == "stop"))
        return shared._replace(state=state, non_finite=non_finite, taken=shared.taken + due)

    def _take_step(self, state: State, replay: DeviceReplay, shards: list[Shard], number: Array) -> State:
        """Gradient step `number` of the run, counted from 1."""
        config, learner = self._config, self._learner
        chosen = None
        if config.target_critics is not None:
            key = jax.random.fold_in(wrap_key(jnp.asarray(self._critics_key)), number)
            order = jax.random.permutation(key, config.num_critics)[: config.target_critics]
            chosen = jnp.sort(order).astype(jnp.int32)
        parts = list[ActorCriticPart]()
        for slot, shard in enumerate(shards):
            batch_key, mask_key = jax.random.split(jax.random.fold_in(wrap_key(shard.order_key), number))
            batch = self._rows.draw(replay, slot, batch_key, learner.num_actions)
            seed = jax.random.bits(mask_key, (), jnp.uint32) if config.dropout else None
            parts.append(jax.lax.optimization_barrier(ActorCriticPart(batch, seed, chosen)))
        own = (jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts), None)
        if config.policy_delay == 1:
            state = learner.step(state, own)[0]
        else:
            state = jax.lax.cond(
                number % config.policy_delay == 0,
                lambda: learner.step(state, own)[0],
                lambda: learner.critic_step(state, own)[0],
            )
        return jax.lax.optimization_barrier(state)

    # -- on the host ---------------------------------------------------------------------------------------------------

    def warmup(self) -> None:
        """Compile, by calls that make no update; *collective*."""
        progress = Progress(self._run.total_steps)
        self._call(self._updates, progress, [])
        if self._splits:
            self._call(self._more_steps, progress, [])

    def _call(self, compiled: Callable[..., Any], progress: Progress, due: list[int]) -> ReplayOutcome:
        """Make an update, or further steps of one, for each of `due`."""
        comm, learner = self._comm, self._learner
        steps = np.zeros(self._calls, np.int32)
        steps[len(steps) - len(due) :] = due
        taken = learner.schedule.gradient_steps
        rollouts = np.float32(progress.env_steps / self._new_steps)
        random_until = np.float32(-(-learner.schedule.random_until(progress.env_steps) // self._new_steps))
        counters = (np.int32(progress.updates), rollouts, random_until, np.int32(len(due)))
        host = (np.bool_(False), *counters, steps, np.int32(taken), np.zeros(4, np.float32))
        shared = ReplayShared(learner.state, *comm.inputs(host))
        shared, (self._own, self._replay) = compiled(shared, (self._own, self._replay))
        learner.state = shared.state
        after, counted, non_finite, left = comm.read((shared.taken, shared.counted, shared.non_finite, shared.left))
        learner.schedule.gradient_steps = int(after)
        return ReplayOutcome(int(after) - taken, counted, bool(non_finite), int(left))

    def run_until_due(self, progress: Progress) -> int:
        """Collect and learn until the next host synchronization; *collective*. Returns the number of updates.

        Raises:
            NonFiniteError: on all ranks, if `non_finite` is `stop` and a number is not finite.
        """
        learner, size = self._learner, self._new_steps
        count = min(self.until_due(progress), max(int(self._most_steps // self._per_update), 1))
        due = [learner.schedule.take_due(progress.env_steps + i * size, size, ready=True) for i in range(count)]
        learner.begin_update(progress.fraction)
        most, started = self._most_steps, time.monotonic()
        rest = due[0] - most if self._splits and count == 1 else 0
        outcome = self._call(self._updates, progress, [most] if rest > 0 else due)
        self._time_first(outcome.taken, time.monotonic() - started)
        taken, counted, left = outcome.taken, outcome.counted, outcome.left
        while rest > 0 and outcome.taken and not outcome.non_finite:
            self._comm.timers.enter(LEARN)  # a heartbeat
            outcome = self._call(self._more_steps, progress, [min(rest, self._most_steps)])
            taken, rest = taken + outcome.taken, rest - outcome.taken
        if outcome.non_finite:
            raise self.non_finite_error(progress.updates + count - left - 1)
        learner.metrics.add(("replay/size", "replay/skipped"), counted[:2], count)
        learner.metrics.add(("optim/learning_rate",), counted[2:3], float(counted[3]))
        learner.add_step_metrics(taken, self._comm.read(learner.state.sums))
        learner.pass_on_params()
        return count

    def _time_first(self, taken: int, seconds: float) -> None:
        """After the first call with gradient steps, bound the time of the next ones; *collective* then."""
        if self._timed or not taken:
            return
        self._timed = True
        slowest = max(self._comm.gather_object(seconds / taken, "first call"))
        self._most_steps = max(min(int(_CALL_PART * self._run.timeout_s / slowest), _MAX_STEPS), 1)

    def shard_state(self, k: int) -> dict[str, Any]:
        """State of local shard `k` between two rollouts."""
        state = super().shard_state(k)
        if not self._config.checkpoint_replay:
            return state
        rings, written = self._comm.unshard_one(self._replay, k)
        return state | {"replay": rings._asdict() | {"written": written}}

    def restore_shard(self, k: int, state: dict[str, Any], step: int) -> bool:
        """Restore local shard `k` from its `shard_state`; True, because the restore is always exact."""
        saved = state.get("replay")
        if saved is None or not self._config.checkpoint_replay:
            self._learner.schedule.fill_again()
        else:
            if not self._restored:
                self._restored = [self._rows.empty()] * len(self._comm.world.shards)
            rings = self._restored[k].rings
            typed = {name: np.asarray(saved[name], leaf.dtype) for name, leaf in rings._asdict().items()}
            if any(typed[name].shape != leaf.shape for name, leaf in rings._asdict().items()):
                raise ConfigError(
                    "the checkpoint holds a replay of another shape; resume with the num_envs, algorithm.capacity, "
                    "algorithm.n_step and algorithm.num_steps that it was made with"
                )
            self._restored[k] = DeviceReplay(rings._replace(**typed), np.asarray(saved["written"], np.int32))  # type: ignore[arg-type]
            if k == len(self._restored) - 1:
                del self._replay  # before the copy that takes its place
                self._replay = self._comm.shard(self._restored)
                self._restored = []
        return super().restore_shard(k, state, step)


def train(session: Session) -> None:
    """Collect and learn on the devices until all ranks together have taken `run.total_steps` steps."""
    run, comm, timers = session.run, session.comm, session.timers
    check_task(run, session.spec)
    config = run.algorithm
    assert isinstance(config, SACConfig | TD3Config)
    make = SAC if isinstance(config, SACConfig) else TD3
    session.check_shards(run.num_envs)
    policy = ContinuousPolicy(session.spec, run.network, config, seed=stream_seed(run.seed, "init"))
    learner = make(run, policy, comm, on_device=True)
    session.begin(learner.evaluated, learner)
    learner.copy_to_target()  # `session.begin` may have loaded another run's policy
    loop = ReplayDeviceLoop(run, PackedEnv(make_device_env(run.task, run.env)), learner)
    loop.warmup()
    progress, new_steps = Progress(run.total_steps), run.num_envs * config.num_steps
    with session.training(progress, loop):
        while not session.over:
            timers.enter(LEARN)
            count = loop.run_until_due(progress)
            timers.enter(OTHER)
            statistics = session.local_statistics()
            loop.report_episodes(statistics, session.journal.episodes)
            session.advance(count * new_steps, comm.sum_statistics(statistics, "statistics"), updates=count)
            session.log_evaluate_checkpoint(count * new_steps, learner.metrics.read)
        session.checkpoint_last(learner.metrics.read)
