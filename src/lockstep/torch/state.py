"""What a checkpoint holds of a run, gathered from the parts that own it and given back to them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.errors import ConfigError
from lockstep.fingerprint import fingerprint
from lockstep.progress import Progress
from lockstep.record.journal import Journal
from lockstep.torch.hardware import describe
from lockstep.world import World


class Learner(Protocol):
    """An algorithm, as far as what outlives an update is concerned."""

    def shared_tensors(self) -> dict[str, Tensor]:
        """Everything that is equal on all ranks, in place: what is written into these tensors is what it goes on with.

        Parameters, optimizer, normalizers, learning rate, sums of metrics.
        """
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
        """Of the first data of this rank; no two ranks have the same."""
        ...

    def shard_state(self, k: int) -> dict[str, Any]:
        """What local shard number `k` needs to go on from here. Plain values and numpy arrays."""
        ...

    def restore_shard(self, k: int, state: dict[str, Any], step: int) -> bool:
        """Continue from what `shard_state` told at `step`; False if it has to begin anew."""
        ...


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

    def tensors(self) -> dict[str, Tensor]:
        """Everything that must be equal on all ranks, counters included."""
        progress = self._progress
        counters = torch.tensor([progress.env_steps, progress.updates, progress.episodes])
        return self._learner.shared_tensors() | {"progress": counters}

    def done(self, policy: nn.Module, device: torch.device) -> dict[str, Any]:
        """What this rank did, for `summary.json`."""
        world = self._world
        parameters = {name: p.detach().float().cpu().numpy() for name, p in policy.named_parameters()}
        return {
            "rank": world.rank,
            "host": os.uname().nodename,
            "device": describe(device),
            "params_fingerprint": fingerprint(parameters),
            "first_rollout_fingerprint": self._source.fingerprint(),
            "env_steps": self._progress.env_steps // world.num_shards * len(world.shards),
            "episodes": sum(episodes.count for episodes in self._journal.episodes),
        }

    def shared(self) -> dict[str, Any]:
        """What all ranks hold alike."""
        tensors = {name: tensor.detach().cpu().numpy() for name, tensor in self._learner.shared_tensors().items()}
        return {"tensors": tensors, "progress": asdict(self._progress), "journal": self._journal.state()}

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

    @torch.no_grad()
    def restore(self, shared: Mapping[str, Any], shards: Mapping[int, Mapping[str, Any]]) -> bool:
        """Go on from a checkpoint.

        Returns:
            Whether every environment continues; those that cannot be saved begin anew.
        """
        for name, tensor in self._learner.shared_tensors().items():
            saved = shared["tensors"].get(name)
            if saved is None or tuple(saved.shape) != tuple(tensor.shape):
                held = "nothing" if saved is None else f"shape {list(saved.shape)}"
                raise ConfigError(
                    f"the checkpoint holds {held} for {name}, this run needs shape {list(tensor.shape)}; "
                    "resume it with the config and the version it was made with"
                )
            tensor.copy_(torch.from_numpy(saved))
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
