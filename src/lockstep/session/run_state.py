"""The state of a run: collected for checkpoints, and restored from them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import numpy as np

from lockstep.distributed.fingerprint import combine, fingerprint
from lockstep.envs.spec import ActionSpec
from lockstep.errors import ConfigError
from lockstep.record.checkpoint import check_types
from lockstep.record.journal import Journal
from lockstep.record.progress import Progress
from lockstep.world import World, block


class ShardStates(Protocol):
    """State that each shard has alone."""

    def shard_state(self, k: int) -> dict[str, Any]:
        """State of local shard `k` alone: random streams, accumulators. Plain values and numpy arrays."""
        ...

    def restore_shard(self, k: int, state: dict[str, Any]) -> None:
        """Restore local shard `k` from its `shard_state`.

        Where environments could not be saved, and have begun new episodes, it also has `continues`, False.
        """
        ...


class Learner(ShardStates, Protocol):
    """The state of an algorithm, as each backend adapts it."""

    def state_to_compare(self) -> Mapping[str, Any]:
        """State that is equal on all ranks, on its device, for `Comm.check_equal`.

        Parameters, optimizer, normalizers, learning rate, sums of metrics.
        """
        ...

    def shared_arrays(self) -> dict[str, np.ndarray]:
        """The same as numpy arrays, with the same names in each backend."""
        ...

    def load_shared(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restore the result of `shared_arrays`."""
        ...


class EndedEpisodes(Protocol):
    """Episodes that ended in the newest data of a source."""

    returns: np.ndarray
    lengths: np.ndarray


class Source(Protocol):
    """The source of training data: environments (`Collector`) or a log (`lockstep.data.reader.Reader`)."""

    @property
    def episodes(self) -> Sequence[EndedEpisodes]:
        """Of each local shard."""
        ...

    def fingerprint(self) -> str:
        """Of the first data of this process; different in each process."""
        ...

    def shard_state(self, k: int) -> dict[str, Any]:
        """State of local shard `k`. Plain values and numpy arrays."""
        ...

    def restore_shard(self, k: int, state: dict[str, Any], step: int) -> bool:
        """Restore the `shard_state` of `step`; False if new episodes have to start."""
        ...


class ShardedSource(Protocol):
    """A source for a process whose shards are on several devices."""

    fingerprints: Sequence[str]
    """Of the first data of each local shard."""


class RunState:
    """The complete state of a run.

    Args:
        world: the ranks and shards.
        learner: state of the algorithm.
        source: of the data.
        journal: log of the run.
        progress: global counters.
        policy: the metadata of its policy file, if the config of the run does not tell all of it.
        action: what the environments take, if there are any.
    """

    def __init__(
        self,
        world: World,
        learner: Learner,
        source: Source,
        journal: Journal,
        progress: Progress,
        policy: Mapping[str, Any] | None = None,
        action: ActionSpec | None = None,
    ) -> None:
        self._policy = policy
        self._action = action
        self._world = world
        self._learner = learner
        self._source = source
        self._journal = journal
        self._progress = progress

    def tensors(self) -> dict[str, Any]:
        """Everything that must be equal on all ranks, including the counters."""
        progress = self._progress
        counters = np.array([progress.env_steps, progress.updates, progress.episodes])
        return {**self._learner.state_to_compare(), "progress": counters}

    def rank_summaries(
        self, parameters: Mapping[str, np.ndarray], devices: Sequence[str], peak_memory: Sequence[int | None]
    ) -> list[dict[str, Any]]:
        """The entry of each rank of this process in `summary.json`.

        Args:
            parameters: trained parameters by name.
            devices: device of each rank of this process; each rank has a block of the shards.
            peak_memory: bytes of these devices.
        """
        world = self._world
        count = len(devices)
        params_fingerprint = fingerprint(parameters)
        first_rollouts = self.fingerprints(count)
        summaries: list[dict[str, Any]] = []
        for d, device in enumerate(devices):
            local = block(len(world.shards), count, d)
            summaries.append(
                {
                    "rank": world.rank * count + d,
                    "host": os.uname().nodename,
                    "device": device,
                    "peak_device_memory": peak_memory[d],
                    "params_fingerprint": params_fingerprint,
                    "first_rollout_fingerprint": first_rollouts[d],
                    "env_steps": self._progress.env_steps // world.num_shards * len(local),
                    "episodes": sum(self._journal.episodes[k].count for k in local),
                }
            )
        return summaries

    def fingerprints(self, ranks: int) -> list[str]:
        """Of the first data of each rank of this process; each rank has a block of the shards."""
        if ranks == 1:
            return [self._source.fingerprint()]
        each = cast(ShardedSource, self._source).fingerprints
        return [combine(each[k] for k in block(len(self._world.shards), ranks, d)) for d in range(ranks)]

    def shared(self) -> dict[str, Any]:
        """State that is equal on all ranks."""
        shared: dict[str, Any] = {
            "tensors": self._learner.shared_arrays(),
            "progress": self._progress.state(),
            "journal": self._journal.state(),
        }
        if self._policy is not None:
            shared["policy"] = self._policy
        if self._action is not None:
            shared["action"] = self._action.to_dict()
        return shared

    @property
    def savable(self) -> bool:
        """Whether the source can be saved.

        Environments that cannot be saved start new episodes when the run is resumed.
        """
        return getattr(self._source, "savable", True)

    def shards(self) -> dict[int, dict[str, Any]]:
        """The state of each local shard."""
        return {
            shard: {
                "learner": _storable(self._learner.shard_state(k)),
                "collector": self._source.shard_state(k),
                "episodes": self._journal.episodes[k].state(),
            }
            for k, shard in enumerate(self._world.shards)
        }

    def restore(self, shared: Mapping[str, Any], shards: Mapping[int, Mapping[str, Any]]) -> bool:
        """Restore a checkpoint.

        Returns:
            Whether every environment continues; those that cannot be saved start new episodes.
        """
        self._check_action(shared.get("action"))
        mine, saved = self._learner.shared_arrays(), shared["tensors"]
        for name, array in mine.items():
            if name not in saved or np.shape(saved[name]) != array.shape:
                saved_shape = f"shape {list(np.shape(saved[name]))}" if name in saved else "nothing"
                raise ConfigError(
                    f"the checkpoint holds {saved_shape} for {name}, this run needs shape {list(array.shape)}; "
                    "resume it with the environment, the config and the version it was made with"
                )
        self._learner.load_shared({name: saved[name] for name in mine})
        restored = replace(Progress(**shared["progress"]), total_steps=self._progress.total_steps)
        for name, value in restored.state().items():
            setattr(self._progress, name, value)
        self._journal.restore(shared["journal"])
        exact = True
        for k, shard in enumerate(self._world.shards):
            state = shards[shard]
            of_learner = dict(state["learner"])
            if not self._source.restore_shard(k, state["collector"], self._progress.env_steps):
                exact = False
                of_learner.pop("discounted", None)  # the returns of episodes that do not continue
                of_learner["continues"] = False
            self._learner.restore_shard(k, of_learner)
            self._journal.episodes[k].restore(state["episodes"])
        return exact

    def _check_action(self, saved: Mapping[str, Any] | None) -> None:
        """Raise `ConfigError` if the replay buffer and the policy of a checkpoint mean other actions.

        Checkpoints of older versions do not say what theirs are.
        """
        if saved is None or self._action is None:
            return
        before = ActionSpec.from_dict(saved)
        if not before.same_numbers(self._action):
            raise ConfigError(
                f"the checkpoint was made with actions {before.values_text}, and the task now takes actions "
                f"{self._action.values_text}; resume it with the environment it was made with, or start a new run "
                "(--init-from takes over the policy)"
            )


def check_methods(learner: object, *names: str) -> None:
    """Raise `ConfigError` unless the learner that a session was given has these methods; names those it lacks."""
    lacking = [f"{name}()" for name in names if not callable(getattr(learner, name, None))]
    if lacking:
        raise ConfigError(
            f"learner={type(learner).__name__} has no {' and no '.join(lacking)}; session.begin(policy, learner) takes "
            "the algorithm itself, whose state checkpoints hold"
        )


def _storable(state: Any) -> dict[str, Any]:
    """The same state of a learner.

    Raises:
        ConfigError: a checkpoint cannot hold it. That is a mistake in code: none would ever be written, so the run does
            not continue as it does while a disk is full.
    """
    if not isinstance(state, Mapping):
        raise ConfigError(f"the learner's shard_state returned {state!r}; return a mapping, {{}} if there is no state")
    try:
        check_types(cast("dict[str, Any]", state), "shard_state")
    except TypeError as error:
        raise ConfigError(f"the learner: {error}; of a tensor give tensor.cpu().numpy()") from None
    return cast("dict[str, Any]", state)
