"""Files of prepared data: names, integrity checks, memory maps."""

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lockstep.errors import ConfigError

FORMAT = 1
PART_ROWS = 1 << 22
"""Rows of every part but the last."""
DESCRIPTION, CHECK = "dataset.json", "check.npz"
STATE_FEATURES, ACTION_FEATURES = "state_features.json", "action_features.json"
MAX_VERIFIED = 1 << 30
"""Largest prepared data, in bytes, whose checksums are verified before each use: a second or two."""
_KEYS = {"format", "info", "part_rows", "parts", "files", "about"}


def column_file(part: int, name: str) -> str:
    """File name of a column of a part, relative to the directory of the data."""
    return f"part_{part:05}/{name}.npy"


def checksum(path: Path) -> str:
    """BLAKE2b (128 bit, hex) of a file."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def read_description(path: Path, named: str = "data", like: str | None = None) -> dict[str, Any]:
    """The contents of `dataset.json`.

    Args:
        path: the directory of the data.
        named: the setting or flag that named the directory, for errors.
        like: data that these must be prepared like, for errors.

    Raises:
        ConfigError: the file is missing or of another format version.
    """
    file = path / DESCRIPTION
    try:
        found = cast(object, json.loads(file.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(_nothing(path, named, like)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from None
    except ValueError as error:
        raise ConfigError(f"{file} is damaged ({error}); prepare the data again") from None
    if not isinstance(found, dict) or not isinstance((expected := cast(dict[str, Any], found)).get("format"), int):
        raise ConfigError(f"{file} does not describe prepared data; give the --out of lockstep offline prepare")
    if expected["format"] != FORMAT:
        raise ConfigError(
            f"{file} has format {expected['format']}, and this version of Lockstep reads format {FORMAT}; prepare the "
            "data again, or use the version that prepared it"
        )
    if missing := sorted(_KEYS - expected.keys()):
        raise ConfigError(f"{file} is damaged: {missing[0]} is missing; prepare the data again")
    return expected


def _nothing(path: Path, named: str, like: str | None) -> str:
    shown, pasted = f"{named}{' ' if named.startswith('--') else '='}{path}", shlex.quote(str(path))
    more = "" if like is None else f" --like {shlex.quote(like)}"
    if not path.exists():
        return f"{shown} does not exist; prepare a log: lockstep offline prepare LOG --out {pasted}{more}"
    if path.is_file():
        return (
            f"{shown} is a file, not prepared data; prepare it: lockstep offline prepare {pasted} --out DIRECTORY{more}"
        )
    return (
        f"{shown} has no {DESCRIPTION}: it is not prepared data, or preparing did not finish; "
        f"run lockstep offline prepare LOG --out DIRECTORY{more}"
    )


def quick_to_verify(path: Path) -> bool:
    """Whether prepared data are small enough to verify their checksums before each use."""
    return sum(file.stat().st_size for file in path.rglob("*.npy")) <= MAX_VERIFIED


def check_file(path: Path, name: str, expected: dict[str, Any], *, verify: bool) -> None:
    """Raise `ConfigError` unless a file has the size, and with `verify` the checksum, of `dataset.json`."""
    file = path / name
    try:
        size = file.stat().st_size
        edited = name in (STATE_FEATURES, ACTION_FEATURES) and checksum(file) != expected["checksum"]
        if edited:
            raise ConfigError(
                f"{file} was changed after the data was normalized by it; prepare the log again with "
                f"--{name.removesuffix('.json').replace('_', '-')} {file}"
            )
        if size != expected["bytes"]:
            raise ConfigError(f"{file} holds {size} bytes instead of {expected['bytes']}; prepare the data again")
        if verify and checksum(file) != expected["checksum"]:
            raise ConfigError(f"{file} is not what was prepared: its checksum differs; prepare the data again")
    except FileNotFoundError:
        raise ConfigError(f"{file} is missing; prepare the data again") from None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None


def map_array(file: Path) -> NDArray[Any]:
    """A memory-mapped array. Raises `ConfigError` if the file is not an array."""
    try:
        try:
            return np.asarray(
                np.load(file, mmap_mode="r", allow_pickle=False)
            )  # plain arrays gather faster than np.memmap
        except ValueError:  # an empty array cannot be mapped
            return np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"{file} cannot be read as an array ({error}); prepare the data again") from None
