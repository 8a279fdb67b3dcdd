"""Write prepared data to a temporary directory, and rename it when it is complete."""

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from lockstep.data.columns import columns, offsets_of, ragged_names
from lockstep.data.dataset_files import (
    ACTION_FEATURES,
    CHECK,
    DESCRIPTION,
    FORMAT,
    PART_ROWS,
    STATE_FEATURES,
    checksum,
    column_file,
)
from lockstep.data.feature_file import save_features
from lockstep.data.features import Features
from lockstep.data.info import DatasetInfo
from lockstep.errors import ConfigError
from lockstep.system.cores import usable_cores
from lockstep.system.files import is_mount_point, sync_directory, write_atomically

_HEADER = 128
"""Bytes of the header of an array file; numpy reserves room in it for any number of rows."""


class DatasetWriter:
    """Context manager that writes the columns of prepared data. Without `finish`, nothing is left behind.

    `path` must be empty or missing, unless it is replaced by `finish`; `sizes` as `DatasetInfo.sizes`; `part_rows` are
    the rows of a part.

    Raises:
        ConfigError: `path` holds files that would be lost, or is a mount point.
    """

    def __init__(
        self,
        path: Path,
        kind: str,
        sizes: tuple[int, int, int],
        *,
        replace: bool = False,
        part_rows: int = PART_ROWS,
    ) -> None:
        self.path = path
        self._kind = kind
        self._part_rows = part_rows
        check_output(path, replace=replace)
        self._columns, self._sizes = columns(kind, sizes), sizes
        self._ragged = ragged_names(kind)
        self._plain = [name for name in self._columns if name not in (*self._ragged, *map(offsets_of, self._ragged))]
        self._streams: dict[str, _Stream] = {}
        self._files: dict[str, dict[str, Any]] = {}
        self._parts: list[int] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        self._folder = _new_folder(path, "unfinished")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the temporary directory unless `finish` has renamed it."""
        for stream in self._streams.values():
            stream.discard()
        shutil.rmtree(self._folder, ignore_errors=True)

    def append(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Write the next rows [n] of all columns, as `columns` describes; a ragged column has offsets `[n + 1]` from 0.

        Raises:
            ValueError: a column is missing, unknown, or of another type or shape.
        """
        if rows.keys() != self._columns.keys():
            raise ValueError(f"not the columns of {self._kind} data: {sorted(rows.keys() ^ self._columns.keys())}")
        count, start = len(rows["key"]), 0
        for name in self._plain:
            _check(name, rows[name], self._columns[name], count)
        for name in self._ragged:
            offsets = rows[offsets_of(name)]
            _check(offsets_of(name), offsets, self._columns[offsets_of(name)], count + 1)
            _check(name, rows[name], self._columns[name], int(offsets[-1]))
        while start < count:
            if not self._streams:
                self._begin_part()
            stop = min(count, start + self._part_rows - self._parts[-1])
            for name in self._plain:
                self._streams[name].write(rows[name][start:stop])
            for name in self._ragged:
                offsets, stream = rows[offsets_of(name)][start : stop + 1], self._streams[name]
                self._streams[offsets_of(name)].write(offsets[1:] - offsets[0] + stream.count)
                stream.write(rows[name][offsets[0] : offsets[-1]])
            self._parts[-1] += stop - start
            start = stop
            if self._parts[-1] == self._part_rows:
                self._end_part()

    def finish(
        self,
        info: DatasetInfo,
        state_features: Features,
        action_features: Features | None = None,
        *,
        check: Mapping[str, NDArray[Any]],
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the description, and rename the directory to `path`.

        `check` are raw values of some rows (see `Dataset.check_rows`); `about` has sources, options and versions as
        plain values.
        """
        if not self._parts:
            self._begin_part()
        if self._streams:
            self._end_part()
        described = (info.kind, info.sizes, info.num_rows)
        written = (self._kind, self._sizes, sum(self._parts))
        if described != written:
            raise ValueError(f"info describes {described}, but {written} was written")
        save_features(state_features, self._folder / STATE_FEATURES)
        if action_features is not None:
            save_features(action_features, self._folder / ACTION_FEATURES)
        with (self._folder / CHECK).open("wb") as file:
            np.savez(file, **cast(dict[str, Any], dict(check)))
        for name in (STATE_FEATURES, ACTION_FEATURES, CHECK):
            if (file := self._folder / name).exists():
                self._files[name] = {"bytes": file.stat().st_size, "checksum": checksum(file)}
        description = {
            "format": FORMAT,
            "info": info.to_dict(),
            "part_rows": self._part_rows,
            "parts": self._parts,
            "files": dict(sorted(self._files.items())),
            "about": dict(about or {}),
        }
        write_atomically(self._folder / DESCRIPTION, json.dumps(description, indent=2))
        self._publish()

    def _begin_part(self) -> None:
        number = len(self._parts)
        (self._folder / f"part_{number:05}").mkdir()
        for name, (dtype, shape) in self._columns.items():
            file = column_file(number, name)
            self._streams[name] = _Stream(self._folder / file, dtype, shape)
        for name in self._ragged:
            self._streams[offsets_of(name)].write(np.zeros(1, np.int64))
        self._parts.append(0)

    def _end_part(self) -> None:
        with ThreadPoolExecutor(usable_cores()) as pool:
            closed = pool.map(_Stream.close, self._streams.values())
            for name, reported in zip(self._streams, closed, strict=True):
                self._files[column_file(len(self._parts) - 1, name)] = reported
        self._streams.clear()

    def _publish(self) -> None:
        """Rename the temporary directory to `path`, which is never incomplete."""
        old = None
        if self.path.is_dir() and any(self.path.iterdir()):
            old = _new_folder(self.path, "replaced")
            os.rename(self.path, old / "data")
        os.rename(self._folder, self.path)  # `path` is an empty directory or does not exist
        sync_directory(self.path.parent)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)


class _Stream:
    """An array file that grows by rows. Its header gets the number of rows when it is closed."""

    def __init__(self, path: Path, dtype: str, shape: tuple[int, ...]) -> None:
        self._path, self._dtype, self._shape = path, dtype, shape
        self.count = 0
        self._file: BinaryIO = path.open("wb")
        self._write_header()

    def write(self, rows: NDArray[Any]) -> None:
        """Append rows."""
        data = np.ascontiguousarray(rows)
        self._file.write(data.data if data.size else b"")
        self.count += len(rows)

    def close(self) -> dict[str, Any]:
        """Write the number of rows, sync the file to the disk, and return its size and checksum."""
        self._file.seek(0)
        self._write_header()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return {"bytes": self._path.stat().st_size, "checksum": checksum(self._path)}

    def discard(self) -> None:
        """Close without completing the header."""
        with contextlib.suppress(OSError):  # of a full disk, for what was buffered
            self._file.close()

    def _write_header(self) -> None:
        head = {"descr": self._dtype, "fortran_order": False, "shape": (self.count, *self._shape)}
        npy.write_array_header_1_0(self._file, head)
        assert self._file.tell() == _HEADER, "numpy writes headers of another length"


def check_output(path: Path, *, replace: bool = False) -> None:
    """Raise `ConfigError` unless `path` is free, or holds prepared data and `replace` is set, and can be renamed."""
    if is_mount_point(path):
        raise ConfigError(
            f"--out {path} is the root of a mounted disk or volume, and prepared data replace a directory as a whole, "
            f"which is not possible there; name one below it: {path / 'data'}"
        )
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists() and not (replace and (path / DESCRIPTION).is_file()):
        known = (path / DESCRIPTION).is_file()
        what = "holds prepared data; add --force to replace it, or" if known else "holds something else;"
        raise ConfigError(f"--out {path} {what} name another directory")


def _check(name: str, rows: NDArray[Any], wanted: tuple[str, tuple[int, ...]], count: int) -> None:
    dtype, shape = wanted
    if (rows.dtype.str, rows.shape) != (dtype, (count, *shape)):
        raise ValueError(f"{name} is {rows.dtype.str} {list(rows.shape)}, not {dtype} {[count, *shape]}")


def _new_folder(path: Path, suffix: str) -> Path:
    folder = path.with_name(f".{path.name}.{secrets.token_hex(4)}.{suffix}")
    folder.mkdir()
    return folder
