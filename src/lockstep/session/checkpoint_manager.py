"""Checkpoints for a user's own training loop: atomic, and without pickle.

The file format is that of `lockstep.record.checkpoint`. The `CheckpointManager`s of the backends add their tensors.
"""

import hashlib
import json
import operator
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import numpy as np

from lockstep.distributed.arguments import a_type
from lockstep.distributed.comm import Comm
from lockstep.errors import ConfigError
from lockstep.record import checkpoint
from lockstep.record.checkpoint import DamagedError
from lockstep.record.checkpoint_writer import CheckpointWriter
from lockstep.record.partial_files import remove_partial_checkpoints
from lockstep.record.run_dir import lock_run_dir

_ITEMS, _TUPLE, _TENSOR = "__items__", "__tuple__", "__tensor__"
"""Keys that mark mappings with other keys than text, tuples, and tensors of a framework."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The arguments of `CheckpointManager.save`, restored."""

    step: int
    shared: dict[str, Any]
    """State that is equal on all ranks."""
    shards: dict[int, dict[str, Any]]
    """State of each shard of this rank; empty where none was saved."""


class CheckpointManager:
    """Saves and restores the state of a training loop; a context manager.

    A state is a tree of mappings, lists and tuples whose leaves are numbers, text, numpy arrays and tensors, such as
    `{"policy": policy.state_dict(), "optimizer": optimizer.state_dict()}`. A scalar of NumPy comes back as a number of
    Python, which has no type of its own beside arrays: save `np.asarray(scalar)` where the type matters. A checkpoint
    appears in `folder/checkpoints/step_N` once every rank has written its part, with a SHA-256 of each file; reading
    one executes no code from it. All methods are *collective*.

    Args:
        comm: an entered `Comm`.
        folder: on a file system that all ranks share. No other process may save there at the same time.
        num_kept: how many of the newest checkpoints to retain.

    Raises:
        ConfigError: ranks name different folders, another manager uses the folder, or it cannot be written.
    """

    def __init__(self, comm: Comm, folder: Path | str, *, num_kept: int = 3) -> None:
        if not isinstance(cast(object, num_kept), int | np.integer) or num_kept < 1:
            raise ConfigError(f"num_kept={num_kept!r} must be a whole number of at least 1")
        self._comm = comm
        self._folder = Path(folder)
        self._lock = -1
        self._closed = False
        named = comm.gather_object(str(self._folder), tag="checkpoint")
        opened = self._open(cast("list[str]", named)) if comm.world.rank == 0 else None
        problem, self._unread = cast("tuple[str, str]", comm.broadcast_object(opened, tag="checkpoint"))
        if problem:
            raise ConfigError(problem)
        self._last_step = 0
        self._writer = CheckpointWriter(self._folder, comm.world, comm.gather_object, self._warn, num_kept)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        self._closed = True
        if self._lock >= 0:
            os.close(self._lock)

    def save(self, step: int, shared: Mapping[str, Any], shards: Mapping[int, Mapping[str, Any]] | None = None) -> bool:
        """Write a checkpoint and wait until it is on the disk.

        Args:
            step: number of the checkpoint, a whole number, at least that of the one saved or restored before. Equal on
                all ranks.
            shared: state that is equal on all ranks, such as parameters, optimizer state and counters; all of it is
                compared, and written once.
            shards: state of each shard in `world.shards`, such as random generators and a replay buffer. Without
                `num_shards` a rank has one shard, whose number is the rank.

        Returns:
            Whether it was written. A full disk causes a warning, and the previous checkpoint remains.

        Raises:
            ConfigError: a part of the state cannot be saved, `step` is no whole number or too small, or the folder
                holds the checkpoints of an earlier loop and `restore` was not called, or the `with` has ended.
            MismatchError: ranks hold different values in `shared`; names the first that differs.
        """
        world = self._comm.world
        if self._closed:
            raise ConfigError(f"folder={self._folder}: the `with` of this CheckpointManager has ended; save within it")
        try:
            step = operator.index(step)  # of numpy and of tensors, too
        except TypeError:
            raise ConfigError(f"step={step} is not a whole number; give int(...) of it") from None
        if self._unread:
            raise ConfigError(
                f"folder={self._folder} holds a checkpoint of step {self._unread}, which saving would replace: call "
                "restore() first, or choose another folder"
            )
        if step < 0:
            raise ConfigError(f"step={step} must be at least 0")
        if step < self._last_step:
            raise ConfigError(
                f"step={step} comes before step {self._last_step}, which was saved or restored before; count on from it"
            )
        own = {shard: dict[str, Any]() for shard in world.shards} if shards is None else shards
        _check_shards(own, world.shards)
        leaves: dict[str, np.ndarray] = {"step": np.array(step)}
        packed = self._pack(shared, "shared", leaves)
        self._comm.check_equal(leaves, "checkpoint")
        manifest: dict[str, Any] = {
            "format": checkpoint.FORMAT,
            "step": step,
            "num_shards": world.num_shards,
            "world_size": world.size,
            "versions": {"lockstep": version("lockstep-rl")},
            "run": {},
        }
        packed_shards = {shard: self._pack(state, f"shards[{shard}]", {}) for shard, state in own.items()}
        self._last_step = step
        self._writer.take(manifest, packed, packed_shards)
        return self._writer.finish(lambda: None) == step

    def restore(self) -> Checkpoint | None:
        """Load the newest complete checkpoint; None if there are no checkpoints.

        Raises:
            ConfigError: no checkpoint is complete, or the number of shards differs.
        """
        problem = self._other_shards() if self._comm.world.rank == 0 else ""
        if problem := self._comm.broadcast_object(problem, tag="checkpoint"):
            raise ConfigError(problem)
        found = self._writer.load(None)
        self._unread = ""
        if found is None:
            return None
        manifest, shared, shards = found
        self._last_step = int(manifest["step"])
        self._writer.continue_after(self._last_step)
        return Checkpoint(
            self._last_step,
            self._unpack(shared),
            {shard: self._unpack(state) for shard, state in shards.items()},
        )

    def to_numpy(self, value: Any, place: str) -> tuple[np.ndarray, str] | None:
        """Convert a tensor of the backend to an array and the name of its dtype; None for anything else.

        An array of numpy with numbers of the backend's own types counts as a tensor.

        Errors name the `place` of the value in what the user saves.
        """
        return None

    def from_numpy(self, array: np.ndarray, kind: str) -> Any:
        """Invert `to_numpy`."""
        return array

    def _open(self, named: list[str]) -> tuple[str, str]:
        """Create and lock the folder that all ranks `named`.

        Returns the problem, and the step of the newest checkpoint; empty for none.
        """
        for rank, other in enumerate(named):
            if other != named[0]:
                return f"folder={named[0]} on rank 0 and {other} on rank {rank}; give all ranks the same", ""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock_run_dir(
                self._folder, "or another CheckpointManager of this one saves here", setting="folder"
            )
            remove_partial_checkpoints(self._folder)
        except ConfigError as error:
            return str(error), ""
        except OSError as error:
            return f"folder={self._folder} cannot be written ({error.strerror}); choose another", ""
        found = checkpoint.find(self._folder)
        return "", found[0].name.removeprefix("step_") if found else ""

    def _other_shards(self) -> str:
        """The problem if the newest readable checkpoint has another number of shards, else an empty text."""
        for path in checkpoint.find(self._folder):
            try:
                saved = int(checkpoint.read_manifest(path)["num_shards"])
            except DamagedError:
                continue
            except ConfigError as error:
                return str(error)
            if saved != self._comm.world.num_shards:
                world = self._comm.world  # no rank is without a shard
                pinning = f", or use World.from_environment().with_shards({saved})" if saved >= world.size else ""
                return (
                    f"{path} has num_shards={saved}, and this run has {world.num_shards}; start it on "
                    f"{saved} rank{'s' * (saved > 1)}{pinning}"
                )
            return ""
        return ""

    def _warn(self, text: str) -> None:
        if self._comm.world.rank == 0:
            print(f"warning: {text}", file=sys.stderr, flush=True)

    def _pack(self, value: Any, place: str, leaves: dict[str, np.ndarray]) -> Any:
        """The value as a checkpoint holds it; adds what to compare between ranks to `leaves`, by its place."""
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            if all(isinstance(key, str) and not key.startswith("__") for key, _ in items):
                return {key: self._pack(item, f"{place}.{key}", leaves) for key, item in items}
            return {
                _ITEMS: [
                    [self._pack(key, f"a key of {place}", {}), self._pack(item, f"{place}[{key!r}]", leaves)]
                    for key, item in items
                ]
            }
        if isinstance(value, tuple) and hasattr(cast(object, value), "_asdict"):
            raise ConfigError(
                f"{place} is a {type(cast(object, value)).__name__}, a named tuple, which a checkpoint would give back "
                "as a plain one; save its ._asdict(), or of JAX's states jax.tree.leaves(state), for jax.tree.unflatten"
            )
        if isinstance(value, list | tuple):
            listed = cast("list[Any]", value)
            if all(_is_plain(item) for item in listed):  # one digest, however long the list is
                leaves[place] = _digest(listed)
                packed = list(listed)
            else:
                packed = [self._pack(item, f"{place}[{i}]", leaves) for i, item in enumerate(listed)]
            return {_TUPLE: packed} if isinstance(value, tuple) else packed
        if _is_plain(value):
            leaves[place] = _digest(value)
            return value
        if (tensor := self.to_numpy(value, place)) is not None:
            leaves[place] = _comparable(_storable(tensor[0], place))
            return {_TENSOR: tensor[0], "type": tensor[1]}
        if isinstance(value, np.ndarray | np.generic):
            array = _storable(cast("np.ndarray | np.generic", value), place)
            leaves[place] = _comparable(array)
            return array
        raise ConfigError(
            f"{place} is a {type(value).__name__}, which a checkpoint cannot hold; give numbers, text, lists, "
            "mappings, arrays or tensors"
        )

    def _unpack(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._unpack(item) for item in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        tree = cast("dict[str, Any]", value)
        if _ITEMS in tree:
            return {self._unpack(key): self._unpack(item) for key, item in tree[_ITEMS]}
        if _TUPLE in tree:
            return tuple(self._unpack(item) for item in tree[_TUPLE])
        if _TENSOR in tree:
            return self.from_numpy(tree[_TENSOR], tree["type"])
        return {key: self._unpack(item) for key, item in tree.items()}


def _check_shards(own: Any, held: Sequence[int]) -> None:
    """Raise `ConfigError` unless there is a mapping for each shard that this rank holds."""
    if not isinstance(own, Mapping):
        raise ConfigError(f"shards is {a_type(own)}, not a mapping; give {{shard: state}} for {list(held)}")
    states = cast("Mapping[int, object]", own)
    if set(states) != set(held):
        raise ConfigError(f"shards={sorted(states)} are saved, and this rank holds {list(held)}; give those")
    for shard, state in states.items():
        if not isinstance(state, Mapping):
            raise ConfigError(f"shards[{shard}] is {a_type(state)}, not a mapping; give {{'name': state}}")


def _storable(array: np.ndarray | np.generic, place: str) -> np.ndarray | np.generic:
    """The same array. Raises `ConfigError` if its numbers are of a type that a checkpoint cannot hold."""
    if not checkpoint.can_store(array.dtype):
        raise ConfigError(
            f"{place} is an array of {array.dtype}, which a checkpoint cannot hold; give {checkpoint.STORABLE}"
        )
    return array


def _comparable(array: np.ndarray | np.generic) -> np.ndarray:
    """The same numbers as every framework takes them: in one piece and in the machine's order of bytes; writable."""
    native = np.asarray(array, array.dtype.newbyteorder("="))
    return np.require(native, requirements=["C", "W"])


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _digest(value: Any) -> np.ndarray:
    """Of plain values, as the checkpoint writes them."""
    hashed = hashlib.blake2b(json.dumps(value).encode(), digest_size=16)
    return np.frombuffer(bytearray(hashed.digest()), np.uint8)  # torch warns of arrays that cannot be written
