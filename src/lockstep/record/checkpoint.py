"""Checkpoints on disk: the complete state of a run in one directory, which appears atomically.

`checkpoints/step_N/` holds `learner.safetensors` (the state that all ranks share), `shard_K.safetensors` for each
shard, and `manifest.json` with the SHA-256 of each. It is written as `.step_N` and renamed when everything is on the
disk; `LATEST` is updated last. Reading runs no code from the files: they are JSON and safetensors.
"""

import hashlib
import json
import math
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
from lockstep.record.latest import LATEST, latest_step
from lockstep.record.partial_files import REPLACED
from lockstep.system.files import sync_directory, write_atomically

FORMAT = 2
FOLDER = "checkpoints"
MANIFEST = "manifest.json"
LEARNER = "learner.safetensors"
State = Mapping[str, Any]
"""A tree of mappings and lists with plain values and numpy arrays at its ends."""

_KINDS = {
    **{"b1": "BOOL", "i1": "I8", "u1": "U8", "i2": "I16", "u2": "U16", "i4": "I32", "u4": "U32", "i8": "I64"},
    **{"u8": "U64", "f2": "F16", "f4": "F32", "f8": "F64"},
}
STORABLE = "booleans, integers of up to 64 bits, or float16, float32 or float64"
"""The types of arrays that a checkpoint can hold, for messages."""
_ARRAY = "__array__"
_METADATA = "__metadata__"  # of safetensors
_CHUNK = 1 << 24  # hashing and writing chunks of this size release the interpreter lock for the training thread


class DamagedError(ConfigError):
    """A checkpoint, or a file of it, is damaged."""


def shard_file(shard: int) -> str:
    """The name of a shard's file."""
    return f"shard_{shard}.safetensors"


def snapshot(state: Any, previous: Any = None) -> Any:
    """A copy of the tree with copies of its arrays, which training overwrites.

    `previous` is an earlier snapshot whose memory is reused: the first write to fresh memory takes several times longer
    than later ones.
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


def can_store(dtype: np.dtype[Any]) -> bool:
    """Whether a checkpoint can hold arrays of this type."""
    return dtype.str[1:] in _KINDS


def check_state(state: State) -> None:
    """Raise `TypeError` or `ValueError` for a tree that cannot be stored in a checkpoint."""
    json.dumps(_without_arrays(snapshot(state), "", {}))


def check_types(state: State, place: str) -> None:
    """Raise `TypeError` for what a checkpoint cannot hold, by its path below `place`; copies no array."""
    _without_arrays(state, place, {})


def write_state(path: Path, state: State, wrote: Callable[[int], object] = lambda _: None) -> dict[str, Any]:
    """Write a tree as a safetensors file, its plain values as metadata, and sync it to the disk.

    `wrote` is called with the number of bytes of each part. Returns `size` and `sha256` of the file, for the manifest.
    """
    arrays: dict[str, NDArray[Any]] = {}
    text = json.dumps(_without_arrays(state, "", arrays))
    header: dict[str, Any] = {_METADATA: {"lockstep": text}}
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
            while written < len(part):  # on a disk that is nearly full, a write may be partial
                written += file.write(part[written:])
            size += len(part)
            wrote(len(part))
        os.fsync(file.fileno())
    return {"size": size, "sha256": hashed.hexdigest()}


def read_state(path: Path, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Read the tree in a file. Raises `DamagedError` unless size and SHA-256 are those of the manifest."""
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
    """The manifest of a checkpoint. Raises `DamagedError`, or `ConfigError` for another format."""
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


def place_of(run_dir: Path, step: int | str) -> Path:
    """The directory of a checkpoint; one that was being replaced when its run was killed has another name for now."""
    path = run_dir / FOLDER / f"step_{step}"
    replaced = path.with_name(REPLACED + path.name)
    return replaced if replaced.is_dir() and not path.is_dir() else path


def find(run_dir: Path) -> list[Path]:
    """The checkpoints of a run, the one to continue first: `LATEST`, then older ones.

    One that was being replaced when its run was killed counts under the name that it has until the next start.
    """
    steps = _by_step(run_dir, f"{REPLACED}step_") | _by_step(run_dir)
    named = latest_step(run_dir)
    latest = named if named in steps else max(steps, default=0)
    return [steps[step] for step in sorted(steps, reverse=True) if step <= latest]


def partial(run_dir: Path, step: int) -> Path:
    """The directory of a checkpoint while it is written."""
    return run_dir / FOLDER / f".step_{step}"


def commit(run_dir: Path, manifest: Mapping[str, Any], num_kept: int) -> None:
    """Publish a checkpoint whose files are written; then remove all but the newest `num_kept` and the best one.

    Checkpoints after the one that the run was resumed from are of another continuation and are removed, too. A copy
    under another name, such as `step_10_keep`, is the user's and stays.
    """
    step = int(manifest["step"])
    abandoned = {*_by_step(run_dir).values()} - {*find(run_dir), run_dir / FOLDER / f"step_{step}"}
    beside, path = partial(run_dir, step), run_dir / FOLDER / f"step_{step}"
    sync_directory(run_dir)  # `checkpoints` and the records may be new in it
    write_atomically(beside / MANIFEST, json.dumps(manifest, indent=2) + "\n")
    sync_directory(beside)
    replaced = path.with_name(REPLACED + path.name)
    with suppress(FileNotFoundError):  # a damaged one, or one of a run that was rewound
        path.rename(replaced)
    beside.rename(path)
    sync_directory(path.parent)
    set_latest(run_dir, path.name)
    shutil.rmtree(replaced, ignore_errors=True)
    for old in (*abandoned, *superseded(run_dir, num_kept)):
        old.rename(old.with_name(f".{old.name}"))  # no longer a checkpoint, however long removing it takes
        shutil.rmtree(old.with_name(f".{old.name}"), ignore_errors=True)  # as on NFS while a reader has a file open


def set_latest(run_dir: Path, name: str) -> None:
    """Set the checkpoint that a resumed run continues."""
    write_atomically(run_dir / LATEST, name + "\n")
    sync_directory(run_dir / FOLDER)


def superseded(run_dir: Path, num_kept: int) -> Iterator[Path]:
    """The checkpoints that are neither among the newest nor the best."""
    found = find(run_dir)
    scores: dict[Path, float] = {}
    for path in found:
        with suppress(ConfigError):
            score = read_manifest(path).get("eval_return_mean")
            if score is not None and not math.isnan(score):  # nothing would count as better than NaN
                scores[path] = float(score)
    # `found` is from new to old; of equal scores the oldest counts, for which the evaluation was made.
    best = max(reversed(scores), key=lambda path: scores[path], default=None)
    yield from (path for path in found[num_kept:] if path != best)


def _by_step(run_dir: Path, prefix: str = "step_") -> dict[int, Path]:
    """The directories of checkpoints by their step; what has no number after `prefix` is none."""
    found = ((path.name.removeprefix(prefix), path) for path in (run_dir / FOLDER).glob(f"{prefix}*"))
    return {int(number): path for number, path in found if number.isdecimal()}


def _size_and_sha256(path: Path) -> tuple[int, str]:
    with path.open("rb", buffering=0) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


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
    if isinstance(value, np.generic):
        return _without_arrays(cast(Any, value).item(), path, arrays)
    if isinstance(value, np.ndarray):
        array = cast(NDArray[Any], value)
        kind = array.dtype.str
        if kind[1:] in _KINDS:
            name = path
            while name in arrays or name == _METADATA:  # the path of {"a/b": ...} is that of {"a": {"b": ...}}
                name += "+"
            arrays[name] = array if kind[0] != ">" else array.byteswap().view(kind.replace(">", "<"))
            return {_ARRAY: name}
        raise TypeError(f"{path} is an array of {array.dtype}; a state holds arrays of {STORABLE}")
    if value is None or isinstance(value, (bool, int, float, str)):
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
