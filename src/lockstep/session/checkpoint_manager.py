"""Checkpoints for a training loop of one's own: what it needs to go on, whole or not at all, and no pickle.

The files are those of `lockstep.record.checkpoint`. The backends' `CheckpointManager`s add their tensors.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import numpy as np

from lockstep.distributed.comm import Comm
from lockstep.errors import ConfigError
from lockstep.record import checkpoint
from lockstep.record.checkpoint import DamagedError
from lockstep.record.checkpoint_writer import CheckpointWriter
from lockstep.record.partial_files import remove_half_written
from lockstep.record.run_dir import hold

_ITEMS, _TUPLE, _TENSOR = "__items__", "__tuple__", "__tensor__"
"""Stand for mappings whose keys are not all text, for tuples, and for tensors of a framework."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What `CheckpointManager.save` was given."""

    step: int
    shared: dict[str, Any]
    """What all ranks held alike."""
    shards: dict[int, dict[str, Any]]
    """What each shard of this rank held; empty where nothing was given."""


class CheckpointManager:
    """Saves and restores the state of a training loop; a context manager.

    A state is a tree of mappings, lists and tuples with numbers, text, numpy arrays and tensors at its ends, such as
    `{"policy": policy.state_dict(), "optimizer": optimizer.state_dict()}`. A checkpoint appears in
    `folder/checkpoints/step_N` once every rank has written its part, under a SHA-256 of each file; reading one runs no
    code from it. All methods are *collective*.

    Args:
        comm: of the ranks, entered.
        folder: where; seen by all ranks. No other process saves there meanwhile.
        num_kept: how many of the newest stay.

    Raises:
        ConfigError: another process uses the folder, or it cannot be written.
    """

    def __init__(self, comm: Comm, folder: Path | str, *, num_kept: int = 3) -> None:
        if num_kept < 1:
            raise ConfigError(f"num_kept={num_kept} must be at least 1")
        self._comm, self._folder, self._held = comm, Path(folder), -1
        problem = self._open() if comm.world.rank == 0 else ""
        if problem := comm.broadcast_object(problem, tag="checkpoint"):
            raise ConfigError(problem)
        self._keeper = CheckpointWriter(self._folder, comm.world, self._gather, self._warn, num_kept)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keeper.close()
        if self._held >= 0:
            os.close(self._held)

    def save(self, step: int, shared: Mapping[str, Any], shards: Mapping[int, Mapping[str, Any]] | None = None) -> bool:
        """Write a checkpoint and wait until it is on the disk.

        Args:
            step: its number; the largest is restored. The same on all ranks.
            shared: what all ranks hold alike, such as parameters and the optimizer's state; compared, and written once.
            shards: what each shard of this rank holds alone, such as random generators and a replay, for each of
                `world.shards`. Without `num_shards` a rank has one shard, of its own number.

        Returns:
            Whether it is there. A full disk costs a warning, and the checkpoint before stays.

        Raises:
            MismatchError: ranks hold different `shared` tensors.
        """
        world = self._comm.world
        own = {shard: dict[str, Any]() for shard in world.shards} if shards is None else shards
        if set(own) != set(world.shards):
            raise ConfigError(f"shards={sorted(own)} are saved, and this rank holds {list(world.shards)}; give those")
        packed = self._pack(shared, "shared")
        arrays: dict[str, np.ndarray] = {"step": np.array(step)}
        _collect(packed, "shared", arrays)
        self._comm.check_equal(arrays, "checkpoint")
        manifest: dict[str, Any] = {
            "format": checkpoint.FORMAT,
            "step": step,
            "num_shards": world.num_shards,
            "world_size": world.size,
            "versions": {"lockstep": version("lockstep-rl")},
            "run": {},
        }
        entry = {shard: self._pack(state, f"shards[{shard}]") for shard, state in own.items()}
        self._keeper.take(manifest, packed, entry)
        return self._keeper.finish(lambda: None) == step

    def restore(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; None if there is none yet.

        Raises:
            ConfigError: none of those that are there is whole, or they were cut into other shards.
        """
        problem = self._other_shards() if self._comm.world.rank == 0 else ""
        if problem := self._comm.broadcast_object(problem, tag="checkpoint"):
            raise ConfigError(problem)
        found = self._keeper.load(None)
        if found is None:
            return None
        manifest, shared, shards = found
        return Checkpoint(
            int(manifest["step"]),
            self._unpack(shared),
            {shard: self._unpack(state) for shard, state in shards.items()},
        )

    def to_numpy(self, value: Any) -> tuple[np.ndarray, str] | None:
        """A tensor of the backend as an array and the name of its type; None for anything else."""
        return None

    def from_numpy(self, array: np.ndarray, kind: str) -> Any:
        """The tensor again."""
        return array

    def _open(self) -> str:
        """Make the folder and keep others out of it. Returns what is wrong, if anything is."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._held = hold(self._folder)
            remove_half_written(self._folder)
        except ConfigError as error:
            return str(error)
        except OSError as error:
            return f"folder={self._folder} cannot be written ({error.strerror}); choose another"
        return ""

    def _other_shards(self) -> str:
        """What is wrong with the shards of the newest checkpoint, if anything is."""
        for path in checkpoint.find(self._folder):
            try:
                saved = int(checkpoint.read_manifest(path)["num_shards"])
            except DamagedError:
                continue
            except ConfigError as error:
                return str(error)
            if saved != self._comm.world.num_shards:
                return (
                    f"{path} has num_shards={saved}, and this run has {self._comm.world.num_shards}; start it on "
                    f"{saved} rank{'s' * (saved > 1)}, or use World.from_environment().with_shards({saved})"
                )
            return ""
        return ""

    def _gather(self, value: Any, tag: str) -> list[Any]:
        return self._comm.gather_object(value, tag)

    def _warn(self, text: str) -> None:
        if self._comm.world.rank == 0:
            print(f"warning: {text}", file=sys.stderr, flush=True)

    def _pack(self, value: Any, place: str) -> Any:
        """A tree as checkpoints hold it."""
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            if all(isinstance(key, str) and not key.startswith("__") for key, _ in items):
                return {key: self._pack(item, f"{place}.{key}") for key, item in items}
            return {_ITEMS: [[key, self._pack(item, f"{place}[{key!r}]")] for key, item in items]}
        if isinstance(value, list | tuple):
            listed = cast("list[Any]", value)
            packed = [self._pack(item, f"{place}[{i}]") for i, item in enumerate(listed)]
            return {_TUPLE: packed} if isinstance(value, tuple) else packed
        if value is None or isinstance(value, np.ndarray | np.generic | bool | int | float | str):
            return cast(Any, value)
        tensor = self.to_numpy(value)
        if tensor is None:
            raise ConfigError(
                f"{place} is a {type(value).__name__}, which a checkpoint cannot hold; give numbers, text, lists, "
                "mappings, arrays or tensors"
            )
        return {_TENSOR: tensor[0], "type": tensor[1]}

    def _unpack(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._unpack(item) for item in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        tree = cast("dict[str, Any]", value)
        if _ITEMS in tree:
            return {key: self._unpack(item) for key, item in tree[_ITEMS]}
        if _TUPLE in tree:
            return tuple(self._unpack(item) for item in tree[_TUPLE])
        if _TENSOR in tree:
            return self.from_numpy(tree[_TENSOR], tree["type"])
        return {key: self._unpack(item) for key, item in tree.items()}


def _collect(value: Any, place: str, arrays: dict[str, np.ndarray]) -> None:
    """The arrays of a tree, by where they stand."""
    if isinstance(value, np.ndarray):
        arrays[place] = value
    elif isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            _collect(item, f"{place}.{key}", arrays)
    elif isinstance(value, list):
        for i, item in enumerate(cast("list[Any]", value)):
            _collect(item, f"{place}[{i}]", arrays)
