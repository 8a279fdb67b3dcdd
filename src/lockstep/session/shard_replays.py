"""The replay buffers of a rank, one for each of its shards, and the number of gradient steps that are due."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lockstep.algorithms.replay import ReplayConfig
from lockstep.distributed.comm import Comm
from lockstep.distributed.timers import LEARN
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.frames import MakeRows
from lockstep.experience.memory import format_bytes
from lockstep.experience.replay import Replay, Transitions
from lockstep.experience.rollout import Rollout
from lockstep.record.journal import Journal
from lockstep.record.progress import Progress
from lockstep.run import Run
from lockstep.session.gradient_schedule import GradientSchedule
from lockstep.session.host_checks import bytes_of_host, check_host, check_replay_device
from lockstep.world import World, stream


class Replayed(NamedTuple):
    """The replay buffers of all shards after a rollout; equal on all ranks."""

    size: int
    """Transitions in the buffers."""
    skipped: float
    """Share of the rollouts that have a non-finite value and were not stored."""
    num_gradient_steps: int
    """Gradient steps to take."""
    fraction: float
    """Of the run, completed before this rollout."""


class ObservationStorage(NamedTuple):
    """Where a rank's replay buffers store observations."""

    make_rows: MakeRows | None = None
    """Makes the storage on the rank's device; None: in the host's memory, or in files."""
    decision: str = ""
    """Why there, for the log; empty where there was nothing to decide."""


ON_HOST = ObservationStorage()


class ShardReplays(GradientSchedule):
    """The replay buffer and the random stream of each local shard, and the gradient steps that are due.

    Args:
        run: the config.
        spec: of the environments.
        comm: the ranks; making the buffers is *collective*.
        storage: of the observations.

    Attributes:
        buffers: of each local shard.
        streams: of each local shard.
    """

    def __init__(self, run: Run, spec: EnvSpec, comm: Comm, storage: ObservationStorage = ON_HOST) -> None:
        super().__init__(run, comm.world)
        self._comm = comm
        self.buffers = make_replays(run, spec, comm, storage)
        self.streams = [stream(run.seed, "replay", shard) for shard in comm.world.shards]

    def extend(
        self, rollouts: Sequence[Rollout], caller_sums: np.ndarray, progress: Progress
    ) -> tuple[Replayed, np.ndarray]:
        """Add each shard's rollout to its buffer, unless it has a non-finite value; *collective*, one message.

        Args:
            rollouts: one for each local shard.
            caller_sums: [K, M] numbers to sum over all shards in the same message.
            progress: of the run before this rollout.

        Returns:
            The buffers of all shards and the gradient steps that are due; the sums of `caller_sums` [M].
        """
        statistics = np.zeros((len(rollouts), 3))
        for k, (replay, rollout) in enumerate(zip(self.buffers, rollouts, strict=True)):
            if rollout.fault is None:
                replay.extend(rollout)
            else:
                replay.leave_out(rollout)
            statistics[k] = rollout.fault is not None, not replay.ready(1), replay.size
        total = self._comm.sum_statistics(np.concatenate([statistics, caller_sums], 1), "statistics")
        faults, unready, size = total[:3].tolist()
        num_shards = self._comm.world.num_shards
        due = self.take_due(progress.env_steps, rollouts[0].reward.size * num_shards, ready=not unready)
        return Replayed(int(size), faults / num_shards, due, progress.fraction), total[3:]

    def minibatches(self, replayed: Replayed) -> Iterator[tuple[list[Transitions], list[np.ndarray]]]:
        """Each shard's part of a minibatch, and its importance weights [N], for each gradient step that is due.

        The weights are not yet divided by the largest of all shards.
        """
        for _ in range(replayed.num_gradient_steps):
            self._comm.timers.enter(LEARN)  # a heartbeat: many steps may be due
            drawn = [replay.sample(self.rows, s) for replay, s in zip(self.buffers, self.streams, strict=True)]
            probabilities = [part.probability / self._comm.world.num_shards for part in drawn]
            yield drawn, [importance_weights(self.config, p, replayed.size, replayed.fraction) for p in probabilities]

    def update_priorities(self, drawn: Sequence[Transitions], priorities: Iterable[np.ndarray]) -> None:
        """Set the priorities [N] of each shard's part of a minibatch."""
        for replay, part, priority in zip(self.buffers, drawn, priorities, strict=True):
            replay.update_priorities(part.index, priority)

    def noise(self, *shape: int) -> list[np.ndarray]:
        """Standard normal numbers [N, *shape] for each shard's part, from the stream that draws its minibatches."""
        return [s.standard_normal((self.rows, *shape), np.float32) for s in self.streams]

    def seeds(self) -> list[int]:
        """A seed for further random numbers of each shard's part, from the stream that draws its minibatches."""
        return [int(s.integers(2**32)) for s in self.streams]

    def shard_state(self, k: int) -> dict[str, Any]:
        """State of local shard `k`."""
        replay = self.buffers[k].state() if self.config.checkpoint_replay else None
        return {"stream": self.streams[k].bit_generator.state, "replay": replay}

    def restore_shard(self, k: int, state: dict[str, Any]) -> None:
        """Restore local shard `k` from its `shard_state`."""
        self.streams[k].bit_generator.state = state["stream"]
        if state["replay"] is None or not self.config.checkpoint_replay:
            self.fill_again()
        else:
            self.buffers[k].restore(state["replay"])
            if not state.get("continues", True):
                self.buffers[k].begin_anew()


def importance_weights(config: ReplayConfig, probability: np.ndarray, size: int, fraction: float) -> np.ndarray:
    """w_i = (size P(i))^-beta as float32 (Schaul et al., 2016, arXiv:1511.05952); 1 without prioritized replay.

    Each of K shards draws an equal part of a minibatch from its own rows, so P(i) = p_i / (K sum_shard p). beta rises
    from `importance_exponent` to 1 in the course of the run; 1 corrects in full.

    Args:
        config: with or without prioritized replay.
        probability: P [N], over all shards.
        size: transitions in the buffers of all shards.
        fraction: of the run that is completed.
    """
    if not config.prioritized:
        return np.ones(len(probability), np.float32)
    beta = config.importance_exponent + (1.0 - config.importance_exponent) * fraction
    return ((size * probability) ** -beta).astype(np.float32)


def make_replays(run: Run, spec: EnvSpec, comm: Comm, storage: ObservationStorage = ON_HOST) -> list[Replay]:
    """Make the replay buffer of each local shard; *collective*.

    Raises:
        ConfigError: on all ranks, if a host lacks the memory or the disk space for its part.
    """
    c, world = run.algorithm, comm.world
    assert isinstance(c, ReplayConfig)
    num_envs, capacity = world.shard_size(run.num_envs, "num_envs"), world.shard_size(c.capacity, "capacity")
    problem = ""
    try:
        if c.replay_device == "cuda" and storage.make_rows is None:
            check_replay_device(run, num_gpus=0)
        check_host(run, spec, world, on_device=storage.make_rows is not None)
    except ConfigError as error:
        problem = str(error)
    # All ranks check before the first one allocates.
    problems: list[str] = comm.gather_object(problem, "replay")
    if any(problems):
        raise ConfigError(next(filter(None, problems)))
    return [
        Replay(
            spec,
            num_envs,
            capacity,
            n_step=c.n_step,
            gamma=c.gamma,
            prioritized=c.prioritized,
            priority_exponent=c.priority_exponent,
            priority_eps=c.priority_eps,
            path=None if c.replay_path is None else Path(c.replay_path) / f"shard_{shard}.frames",
            make_rows=storage.make_rows,
        )
        for shard in world.shards
    ]


def announce_replay(
    journal: Journal, run: Run, spec: EnvSpec, world: World, storage: ObservationStorage = ON_HOST
) -> None:
    """Print at the start how much memory the replay takes."""
    c = run.algorithm
    assert isinstance(c, ReplayConfig)
    on_device = storage.make_rows is not None
    memory = bytes_of_host(run, spec, world, mapped=on_device or None)
    whole = bytes_of_host(run, spec, world, mapped=False)
    text = f"replay: {c.capacity} transitions in {world.num_shards} part{'s' * (world.num_shards > 1)}, "
    text += f"{format_bytes(memory)} of memory on this host"
    if c.checkpoint_replay and on_device:
        text += f", up to {format_bytes(2 * whole - memory)} more for the copy that checkpoints take"
    elif c.checkpoint_replay:
        more = "as much again" if memory == whole else f"{format_bytes(whole)} more"  # the copy includes mapped files
        text += f", {more} for the copy that checkpoints take"
    if storage.decision:
        text += f"; replay_device={c.replay_device}: {storage.decision}"
    if c.replay_path is not None:
        text += f", {format_bytes(whole - memory)} in {c.replay_path}"
    journal.say(text)
