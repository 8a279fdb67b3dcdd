"""What a checkpoint holds of a run, gathered from the parts that own it and given back to them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol, cast

import numpy as np

from lockstep.distributed.fingerprint import combine, fingerprint
from lockstep.errors import ConfigError
from lockstep.record.journal import Journal
from lockstep.record.progress import Progress
from lockstep.world import World, block


class Learner(Protocol):
    """An algorithm, as far as what outlives an update is concerned; each backend makes one of its own."""

    def proof(self) -> Mapping[str, Any]:
        """Everything that is equal on all ranks, where it lives, as `Comm.check_equal` takes it.

        Parameters, optimizer, normalizers, learning rate, sums of metrics.
        """
        ...

    def shared_arrays(self) -> dict[str, np.ndarray]:
        """The same as arrays of the host; each backend has the same names for the same thing."""
        ...

    def load_shared(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on with what `shared_arrays` told."""
        ...

    def shard_state(self, k: int) -> dict[str, Any]:
        """What belongs to local shard number `k` alone: random streams, accumulators. Plain values and numpy arrays."""
        ...

    def restore_shard(self, k: int, state: dict[str, Any]) -> None:
        """Continue local shard number `k` from what `shard_state` told."""
        ...


class Seen(Protocol):
    """Episodes that ended in what a source gave last."""

    returns: np.ndarray
    lengths: np.ndarray


class Source(Protocol):
    """Where the data comes from: environments (`Collector`) or a log (`lockstep.data.reader.Reader`)."""

    @property
    def episodes(self) -> Sequence[Seen]:
        """Of each local shard."""
        ...

    def fingerprint(self) -> str:
        """Of the first data of this process; no two have the same."""
        ...

    def shard_state(self, k: int) -> dict[str, Any]:
        """What local shard number `k` needs to go on from here. Plain values and numpy arrays."""
        ...

    def restore_shard(self, k: int, state: dict[str, Any], step: int) -> bool:
        """Continue from what `shard_state` told at `step`; False if it has to begin anew."""
        ...


class OfShards(Protocol):
    """A source for a process whose shards lie on several devices."""

    fingerprints: Sequence[str]
    """Of the first data of each local shard."""


class RunState:
    """All that a run needs to go on.

    Args:
        world: whose shards.
        learner: the algorithm.
        source: of the data.
        journal: what has been written.
        progress: global counters.
    """

    def __init__(self, world: World, learner: Learner, source: Source, journal: Journal, progress: Progress) -> None:
        self._world, self._learner, self._source = world, learner, source
        self._journal, self._progress = journal, progress

    def tensors(self) -> dict[str, Any]:
        """Everything that must be equal on all ranks, counters included."""
        progress = self._progress
        counters = np.array([progress.env_steps, progress.updates, progress.episodes])
        return {**self._learner.proof(), "progress": counters}

    def done(self, parameters: Mapping[str, np.ndarray], devices: Sequence[str]) -> list[dict[str, Any]]:
        """What each rank of this process did, for `summary.json`.

        Args:
            parameters: what was trained, by name.
            devices: where each rank of this process computes; each has a block of the process' shards.
        """
        world, count, gathered = self._world, len(devices), list[dict[str, Any]]()
        same, first = fingerprint(parameters), self.fingerprints(count)
        for d, device in enumerate(devices):
            local = block(len(world.shards), count, d)
            gathered.append(
                {
                    "rank": world.rank * count + d,
                    "host": os.uname().nodename,
                    "device": device,
                    "params_fingerprint": same,
                    "first_rollout_fingerprint": first[d],
                    "env_steps": self._progress.env_steps // world.num_shards * len(local),
                    "episodes": sum(self._journal.episodes[k].count for k in local),
                }
            )
        return gathered

    def fingerprints(self, ranks: int) -> list[str]:
        """Of the first data of each of this process' ranks; each has a block of the process' shards."""
        if ranks == 1:
            return [self._source.fingerprint()]
        each = cast(OfShards, self._source).fingerprints
        return [combine(each[k] for k in block(len(self._world.shards), ranks, d)) for d in range(ranks)]

    def shared(self) -> dict[str, Any]:
        """What all ranks hold alike."""
        return {
            "tensors": self._learner.shared_arrays(),
            "progress": asdict(self._progress),
            "journal": self._journal.state(),
        }

    @property
    def savable(self) -> bool:
        """Whether what is learned from can be saved where it stands; environments that cannot be begin anew."""
        return getattr(self._source, "savable", True)

    def shards(self) -> dict[int, dict[str, Any]]:
        """The state of each local shard."""
        return {
            shard: {
                "learner": self._learner.shard_state(k),
                "collector": self._source.shard_state(k),
                "episodes": self._journal.episodes[k].state(),
            }
            for k, shard in enumerate(self._world.shards)
        }

    def restore(self, shared: Mapping[str, Any], shards: Mapping[int, Mapping[str, Any]]) -> bool:
        """Go on from a checkpoint.

        Returns:
            Whether every environment continues; those that cannot be saved begin anew.
        """
        mine, saved = self._learner.shared_arrays(), shared["tensors"]
        for name, array in mine.items():
            if name not in saved or np.shape(saved[name]) != array.shape:
                held = f"shape {list(np.shape(saved[name]))}" if name in saved else "nothing"
                raise ConfigError(
                    f"the checkpoint holds {held} for {name}, this run needs shape {list(array.shape)}; "
                    "resume it with the config and the version it was made with"
                )
        self._learner.load_shared({name: saved[name] for name in mine})
        restored = replace(Progress(**shared["progress"]), total_steps=self._progress.total_steps)
        for name, value in asdict(restored).items():
            setattr(self._progress, name, value)
        self._journal.restore(shared["journal"])
        exact = True
        for k, shard in enumerate(self._world.shards):
            state = shards[shard]
            self._learner.restore_shard(k, state["learner"])
            self._journal.episodes[k].restore(state["episodes"])
            exact &= self._source.restore_shard(k, state["collector"], self._progress.env_steps)
        return exact
