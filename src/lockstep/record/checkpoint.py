"""Checkpoints on disk: all that a run needs to go on, in one directory that is there whole or not at all.

`checkpoints/step_N/` holds `learner.safetensors` (what all ranks share), `shard_K.safetensors` for each shard, and
`manifest.json` with the SHA-256 of each. It is written as `.step_N` and renamed when everything is on the disk;
`LATEST` follows last. Reading runs no code from the files: they are JSON and safetensors.
"""

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from lockstep.errors import ConfigError
from lockstep.record.run_dir import write_atomically

FORMAT = 2
FOLDER = "checkpoints"
MANIFEST = "manifest.json"
LEARNER = "learner.safetensors"
State = Mapping[str, Any]
"""A tree of mappings and lists with plain values and numpy arrays at its ends."""

_LATEST = "LATEST"
_KINDS = {
    **{"b1": "BOOL", "i1": "I8", "u1": "U8", "i2": "I16", "u2": "U16", "i4": "I32", "u4": "U32", "i8": "I64"},
    **{"u8": "U64", "f2": "F16", "f4": "F32", "f8": "F64"},
}
_ARRAY = "__array__"
_CHUNK = 1 << 24  # hashing and writing so much at once leaves the interpreter to the training thread meanwhile


class DamagedError(ConfigError):
    """A checkpoint, or a file of it, is not what its writer wrote."""


def shard_file(shard: int) -> str:
    """The name of a shard's file."""
    return f"shard_{shard}.safetensors"


def snapshot(state: Any, previous: Any = None) -> Any:
    """The same tree with copies of its arrays, as training goes on and changes them.

    Args:
        state: the tree.
        previous: an earlier snapshot that is needed no longer; its memory is used again, since fresh memory takes
            several times longer to write to.
    """
    if isinstance(state, Mapping):
        old = cast(Mapping[str, Any], previous if isinstance(previous, Mapping) else {})
        return {key: snapshot(item, old.get(key)) for key, item in cast(Mapping[str, Any], state).items()}
    if isinstance(state, (list, tuple)):
        return [snapshot(item) for item in cast(list[Any], state)]
    if isinstance(state, np.ndarray):
        array = cast(NDArray[Any], state)
        if isinstance(previous, np.ndarray):
            before = cast(NDArray[Any], previous)
            if (before.shape, before.dtype) == (array.shape, array.dtype):
                np.copyto(before, array)
                return before
        return np.array(array, order="C")
    return cast(Any, state).item() if isinstance(state, np.generic) else state


def check_state(state: State) -> None:
    """Raise `TypeError` or `ValueError` for a tree that no checkpoint can hold."""
    json.dumps(_without_arrays(snapshot(state), "", {}))


def write_state(path: Path, state: State, wrote: Callable[[int], object] = lambda _: None) -> dict[str, Any]:
    """Write a tree as a safetensors file, its plain values as metadata, and force it to the disk.

    Args:
        path: the file.
        state: the tree.
        wrote: told the number of bytes now and then.

    Returns:
        `size` and `sha256` of the file, for the manifest.
    """
    arrays: dict[str, NDArray[Any]] = {}
    text = json.dumps(_without_arrays(state, "", arrays))
    header: dict[str, Any] = {"__metadata__": {"lockstep": text}}
    offset = 0
    for name, array in arrays.items():
        kind = _KINDS[array.dtype.str[1:]]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    hashed, size = hashlib.sha256(), 0
    with path.open("wb", buffering=0) as file:
        for part in _parts(struct.pack("<Q", len(head)) + head, arrays):
            hashed.update(part)
            written = 0
            while written < len(part):  # a disk that is nearly full takes a part of a part
                written += file.write(part[written:])
            size += len(part)
            wrote(len(part))
        os.fsync(file.fileno())
    return {"size": size, "sha256": hashed.hexdigest()}


def read_state(path: Path, expected: Mapping[str, Any]) -> dict[str, Any]:
    """The tree in a file. Raises `DamagedError` unless size and SHA-256 are as the manifest `expected`."""
    try:
        size, sha256 = _size_and_sha256(path)
        if size != expected["size"]:
            problem = f"holds {size} bytes, its manifest says {expected['size']}"
        elif sha256 != expected["sha256"]:
            problem = "is not what was written: its SHA-256 differs from the manifest's"
        else:
            return _read(path)
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        problem = f"is not a file of a checkpoint ({type(error).__name__})"
    raise DamagedError(f"{path} {problem}")


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint says of itself. Raises `DamagedError`, or `ConfigError` for another format."""
    path = checkpoint / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        form = manifest["format"]
    except OSError as error:
        raise DamagedError(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError):
        raise DamagedError(f"{path} is not the manifest of a checkpoint") from None
    if form != FORMAT:
        raise ConfigError(
            f"{checkpoint} has format {form}, this version of Lockstep reads format {FORMAT}; "
            f"resume it with lockstep-rl {manifest.get('versions', {}).get('lockstep', 'of that time')}"
        )
    wanted = {"step": int, "num_shards": int, "world_size": int, "run": dict, "files": dict}
    if any(not isinstance(manifest.get(key), kind) for key, kind in wanted.items()):
        raise DamagedError(f"{path} is not the manifest of a checkpoint")
    return manifest


def find(run_dir: Path) -> list[Path]:
    """The checkpoints of a run, the one to continue first: `LATEST`, then older ones."""
    steps = {int(path.name[5:]): path for path in (run_dir / FOLDER).glob("step_*") if path.name[5:].isdecimal()}
    latest = max(steps, default=0)
    with suppress(OSError, ValueError):
        named = int((run_dir / FOLDER / _LATEST).read_text().strip().removeprefix("step_"))
        latest = named if named in steps else latest
    return [steps[step] for step in sorted(steps, reverse=True) if step <= latest]


def partial(run_dir: Path, step: int) -> Path:
    """Where a checkpoint is written before it is whole."""
    return run_dir / FOLDER / f".step_{step}"


def commit(run_dir: Path, manifest: Mapping[str, Any], num_kept: int) -> None:
    """Make a checkpoint whose files are written appear; then drop old ones.

    Keeps the newest `num_kept` and the one with the best evaluation.
    """
    step = int(manifest["step"])
    beside, path = partial(run_dir, step), run_dir / FOLDER / f"step_{step}"
    write_atomically(beside / MANIFEST, json.dumps(manifest, indent=2) + "\n")
    _sync_directory(beside)
    if path.exists():  # a damaged one, or that of a run which was set back
        shutil.rmtree(path)
    beside.rename(path)
    _sync_directory(path.parent)
    set_latest(run_dir, path.name)
    for old in superseded(run_dir, num_kept):
        old.rename(old.with_name(f".{old.name}"))  # at once no checkpoint any more, however long removing it takes
        shutil.rmtree(old.with_name(f".{old.name}"))


def set_latest(run_dir: Path, name: str) -> None:
    """Say which checkpoint a resumed run continues."""
    write_atomically(run_dir / FOLDER / _LATEST, name + "\n")
    _sync_directory(run_dir / FOLDER)


def superseded(run_dir: Path, num_kept: int) -> Iterator[Path]:
    """The checkpoints that are neither among the newest nor the best."""
    found = find(run_dir)
    scores: dict[Path, float] = {}
    for path in found:
        with suppress(ConfigError):
            score = read_manifest(path).get("eval_return_mean")
            if score is not None:
                scores[path] = float(score)
    # `found` is from new to old, and of equals the first: an evaluation belongs to the oldest that has it.
    best = max(reversed(scores), key=lambda path: scores[path], default=None)
    yield from (path for path in found[num_kept:] if path != best)


def _size_and_sha256(path: Path) -> tuple[int, str]:
    hashed = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            hashed.update(chunk)
        return file.tell(), hashed.hexdigest()


def _read(path: Path) -> dict[str, Any]:
    with safe_open(path, "np") as file:  # pyright: ignore[reportUnknownVariableType]
        metadata = cast("dict[str, str]", file.metadata())
        return json.loads(
            metadata["lockstep"],
            object_hook=lambda item: file.get_tensor(item[_ARRAY]) if _ARRAY in item else item,  # pyright: ignore[reportUnknownLambdaType]
        )


def _without_arrays(value: Any, path: str, arrays: dict[str, NDArray[Any]]) -> Any:
    """The tree with a name in place of each array, which goes to `arrays`."""
    if isinstance(value, Mapping):
        return {
            str(key): _without_arrays(item, f"{path}/{key}" if path else str(key), arrays)
            for key, item in cast(Mapping[Any, Any], value).items()
        }
    if isinstance(value, (list, tuple)):
        return [_without_arrays(item, f"{path}/{i}", arrays) for i, item in enumerate(cast(list[Any], value))]
    if isinstance(value, np.ndarray):
        array = cast(NDArray[Any], value)
        kind = array.dtype.str
        if kind[1:] in _KINDS and path not in arrays:
            arrays[path] = array if kind[0] != ">" else array.byteswap().view(kind.replace(">", "<"))
            return {_ARRAY: path}
    elif value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(
        f"{path} is a {type(cast(object, value)).__name__}; a state holds numbers, text, lists, mappings and arrays"
    )


def _parts(head: bytes, arrays: Mapping[str, NDArray[Any]]) -> Iterator[memoryview]:
    yield memoryview(head)
    for array in arrays.values():
        raw = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        for start in range(0, len(raw), _CHUNK):
            yield raw[start : start + _CHUNK]


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
