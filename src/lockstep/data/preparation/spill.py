"""Rows of a log on the disk: written in runs, read by ranges of trajectories.

A run is one file with its rows ordered by bin, the first 12 bits of the hash of the trajectory. Bins a to b are thus
one slice of each column of each run, and trajectories are read whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from lockstep.data.preparation.blocks import Block, concatenate
from lockstep.data.preparation.lists import Lists, offsets_of

_BINS = 1 << 12
_SHIFT = np.uint64(64 - 12)
_WHOLE = 1 << 24
"""Largest table of lists that is read whole. Larger ones are stored by row, so that they can be sliced."""


@dataclass(slots=True)
class _Array:
    at: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def read(self, file: BinaryIO, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        stop = self.shape[0] if stop is None else stop
        width = int(np.prod(self.shape[1:], dtype=np.int64))
        file.seek(self.at + start * width * self.dtype.itemsize)
        return np.fromfile(file, self.dtype, (stop - start) * width).reshape(stop - start, *self.shape[1:])


@dataclass(slots=True)
class _ListArrays:
    """Location of lists: one per row in the order of rows, or a small table that rows share."""

    of_rows: bool
    index: _Array
    offsets: _Array
    items: _Array

    def read(self, file: BinaryIO, start: int, stop: int) -> Lists:
        index = self.index.read(file, start, stop)
        if not self.of_rows:
            return Lists(index, self.offsets.read(file), self.items.read(file)).compact()
        offsets = self.offsets.read(file, start, stop + 1)
        items = self.items.read(file, int(offsets[0]), int(offsets[-1]))
        return Lists(np.where(index < 0, -1, index - start), offsets - offsets[0], items)


@dataclass(slots=True)
class _Run:
    path: Path
    begins: NDArray[np.int64]
    """[bins + 1], first row of each bin."""
    columns: dict[str, _Array] = field(default_factory=dict[str, _Array])
    lists: dict[str, _ListArrays] = field(default_factory=dict[str, _ListArrays])


class Spill:
    """Rows in an existing directory, which the caller removes; `pending` bytes are buffered before a run is written."""

    def __init__(self, directory: Path, pending: int) -> None:
        self._directory, self._limit = directory, pending
        self._pending = list[Block]()
        self._held = 0
        self._runs = list[_Run]()
        self.num_rows = 0
        self.bytes = 0
        """Bytes of all rows so far, in memory or on the disk."""

    def add(self, block: Block) -> bool:
        """Add rows; returns whether a run was written."""
        self._pending.append(block)
        size = _size(block)
        self._held += size
        self.bytes += size
        self.num_rows += len(block)
        if self._held < self._limit:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        """Write pending rows as a run."""
        if not self._pending:
            return
        block = concatenate(self._pending)
        self._pending, self._held = [], 0
        bins = (block.columns["hash_0"] >> _SHIFT).astype(np.uint16)
        order = np.argsort(bins, kind="stable")  # a radix sort, since the numbers have 16 bits
        begins = offsets_of(np.bincount(bins, minlength=_BINS))
        run = _Run(self._directory / f"run_{len(self._runs):05}", begins)
        with run.path.open("wb") as file:
            for name, column in block.columns.items():
                run.columns[name] = _write(file, column[order])
            for name, lists in block.lists.items():
                lists = lists.take(order)
                of_rows = lists.items.nbytes + lists.offsets.nbytes > _WHOLE
                lists = lists.flat() if of_rows else lists
                arrays = (_write(file, part) for part in (lists.index, lists.offsets, lists.items))
                run.lists[name] = _ListArrays(of_rows, *arrays)
        self._runs.append(run)

    def groups(self, size: int) -> Iterator[tuple[int, int]]:
        """Ranges [first, last) of bins with at most `size` bytes each, or a single bin."""
        max_rows = max(size * self.num_rows // max(self.bytes, 1), 1)
        totals = np.zeros(_BINS, np.int64)
        for run in self._runs:
            totals += np.diff(run.begins)
        first, held = 0, 0
        for place, number in enumerate(map(int, totals)):
            if held and held + number > max_rows:
                yield first, place
                first, held = place, 0
            held += number
        if held:
            yield first, _BINS

    def read(self, first: int, last: int) -> Block:
        """The rows of a range of bins, unordered."""
        blocks = list[Block]()
        for run in self._runs:
            start, stop = int(run.begins[first]), int(run.begins[last])
            if start == stop:
                continue
            with run.path.open("rb", buffering=0) as file:
                columns = {name: array.read(file, start, stop) for name, array in run.columns.items()}
                lists = {name: arrays.read(file, start, stop) for name, arrays in run.lists.items()}
            blocks.append(Block(columns, lists))
        return concatenate(blocks)


def _write(file: BinaryIO, array: NDArray[Any]) -> _Array:
    at = file.tell()
    array = np.ascontiguousarray(array)
    file.write(array.data.cast("B") if array.size else b"")
    return _Array(at, array.dtype, array.shape)


def _size(block: Block) -> int:
    lists = sum(found.index.nbytes + found.offsets.nbytes + found.items.nbytes for found in block.lists.values())
    return lists + sum(column.nbytes for column in block.columns.values())
