"""Columns of prepared data: memory-mapped arrays in several parts, gathered as one.

Shapes: n rows of all parts, N rows to gather, M metrics, S numbers of a state, A actions, K numbers of an action.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]
_ALIGNMENT = 64


def columns(kind: str, sizes: tuple[int, int, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of a row of every column, by name; `sizes` as `DatasetInfo.sizes`.

    The rows of parametric `possible_actions` are candidates; a separate column holds their offsets.
    """
    state, action, metrics = sizes
    found: dict[str, tuple[str, tuple[int, ...]]] = {"state": ("<f4", (state,)), "next_state": ("<f4", (state,))}
    taken = ("<i4", ()) if kind == "discrete" else ("<f4", (action,))
    found |= {"action": taken, "next_action": taken}
    if kind != "discrete":
        found |= {"has_next_action": ("|u1", ())}
    if kind == "parametric":
        found |= {"action_index": ("<i4", ())}
    for name in () if kind == "continuous" else ("possible_actions", "possible_next_actions"):
        found[name] = ("|u1" if kind == "discrete" else "<f4", (action,))
        if kind == "parametric":
            found[offsets_of(name)] = ("<i8", ())
    found |= {"reward": ("<f4", ()), "metrics": ("<f4", (metrics,))}
    found |= {"terminal": ("|u1", ()), "continues": ("|u1", ())}
    # A density may exceed the range of a float: continuous data hold its logarithm.
    density = {"log_density": ("<f8", ())} if kind == "continuous" else {"propensity": ("<f4", ())}
    found |= {"time_diff": ("<f4", ()), **density}
    found |= {"trajectory": ("<i8", ()), "sequence_number": ("<i8", ()), "key": ("<u8", (2,))}
    return found


def offsets_of(name: str) -> str:
    """The name of the offsets `[n + 1]` of a ragged column; they start at 0 in each part."""
    return f"{name}_offsets"


def ragged_names(kind: str) -> tuple[str, ...]:
    """Columns that hold a list for each row."""
    return ("possible_actions", "possible_next_actions") if kind == "parametric" else ()


@dataclass(slots=True)
class Ragged:
    """Lists of varying length, concatenated: the list of row i is `values[offsets[i] : offsets[i + 1]]`."""

    values: NDArray[np.float32]
    """[m, K]: the entries of all lists."""
    offsets: Index
    """[N + 1], from 0 to m."""

    def between(self, start: int, stop: int) -> "Ragged":
        """The lists of rows `start` to `stop`, aligned."""
        offsets = self.offsets[start : stop + 1]
        return Ragged(aligned(self.values[offsets[0] : offsets[-1]]), offsets - offsets[0])


class RowLocations:
    """The part of each of N rows, and its position there. Computed once for all columns."""

    def __init__(self, index: Index, part_rows: int, num_rows: int) -> None:
        if index.size and (int(index.min()) < 0 or int(index.max()) >= num_rows):
            raise IndexError(f"a row outside of the {num_rows} that there are")
        self.count = len(index)
        self.parts: list[tuple[int, Index | None, Index]] = []
        """`(part, which of the N rows, their positions within the part)`; `None`: all of them."""
        if num_rows <= part_rows:
            self.parts.append((0, None, index))
            return
        part = index // part_rows
        for number in np.unique(part).tolist():
            which = np.flatnonzero(part == number)
            self.parts.append((number, which, index[which] - number * part_rows))


class Column:
    """One column of all parts: `column[index]` gathers rows [N], `column[start:stop]` reads consecutive ones."""

    def __init__(self, parts: Sequence[NDArray[Any]], part_rows: int) -> None:
        self._parts = parts
        self._part_rows = part_rows
        self._num_rows = sum(len(part) for part in parts)
        self.dtype = parts[0].dtype
        self.row_shape = parts[0].shape[1:]

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, index: slice | Index) -> NDArray[Any]:
        if not isinstance(index, slice):
            return self.gather(RowLocations(index, self._part_rows, self._num_rows))
        start, stop, step = index.indices(self._num_rows)
        if step != 1:
            raise ValueError("slices of rows must have step 1")
        found = [
            part[max(start - first, 0) : max(stop - first, 0)]
            for first, part in zip(range(0, self._num_rows or 1, self._part_rows), self._parts, strict=True)
            if start < first + len(part) and first < stop
        ]
        return np.concatenate(found) if found else self._parts[0][:0].copy()

    def gather(self, locations: RowLocations) -> NDArray[Any]:
        """The rows at `locations`, in that order; a new array."""
        found = aligned_empty((locations.count, *self.row_shape), self.dtype)
        for part, which, where in locations.parts:
            if which is None:  # `clip` avoids a copy of the output; RowLocations has checked the bounds
                np.take(self._parts[part], where, axis=0, out=found, mode="clip")
            else:
                found[which] = np.take(self._parts[part], where, axis=0, mode="clip")
        return found


class RaggedColumn:
    """A column of lists, gathered without padding."""

    def __init__(self, values: Sequence[NDArray[np.float32]], offsets: Sequence[Index], part_rows: int) -> None:
        self._values = values
        self._offsets = offsets
        self._part_rows = part_rows
        self._num_rows = sum(len(part) - 1 for part in offsets)

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, index: slice | Index) -> Ragged:
        if isinstance(index, slice):
            index = np.arange(*index.indices(self._num_rows), dtype=np.int64)
        return self.gather(RowLocations(index, self._part_rows, self._num_rows))

    def lengths(self, rows: slice) -> Index:
        """Lengths of the lists of some rows, without reading the lists."""
        index = np.arange(*rows.indices(self._num_rows), dtype=np.int64)
        part, within = np.divmod(index, self._part_rows)
        found = np.empty_like(index)
        for number, offsets in enumerate(self._offsets):
            here = part == number
            found[here] = offsets[within[here] + 1] - offsets[within[here]]
        return found

    def gather(self, locations: RowLocations) -> Ragged:
        """The lists of the rows at `locations`, in that order; new arrays."""
        begins = [np.take(self._offsets[part], where, mode="clip") for part, _, where in locations.parts]
        lengths = [
            np.take(self._offsets[part], where + 1, mode="clip") - begin
            for (part, _, where), begin in zip(locations.parts, begins, strict=True)
        ]
        offsets = np.zeros(locations.count + 1, np.int64)
        for (_, which, _), length in zip(locations.parts, lengths, strict=True):
            offsets[1:][slice(None) if which is None else which] = length
        np.cumsum(offsets, out=offsets)
        found = aligned_empty((int(offsets[-1]), *self._values[0].shape[1:]), np.float32)
        for (part, which, _), begin, length in zip(locations.parts, begins, lengths, strict=True):
            if which is None:
                source = np.arange(len(found)) + np.repeat(begin - offsets[:-1], length)
                np.take(self._values[part], source, axis=0, out=found, mode="clip")
            else:
                within = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
                target = within + np.repeat(offsets[which], length)
                found[target] = np.take(self._values[part], within + np.repeat(begin, length), axis=0, mode="clip")
        return Ragged(found, offsets)


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """A new array at an address that is a multiple of 64.

    Matrix products may choose their kernel, and with it the last bits of the result, by the alignment of their inputs.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    start = -_address(raw) % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """The array itself if its address is a multiple of 64, otherwise an aligned copy."""
    if _address(array) % _ALIGNMENT == 0:
        return array
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
