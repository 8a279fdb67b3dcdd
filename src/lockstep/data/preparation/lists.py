"""Lists of actions, one or none per row, and each distinct one kept once where they repeat.

Shapes: n rows, t lists, m items of all lists, F numbers of an item.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.data.preparation.hashing import Words, hash_lists

_LOOKED_AT = 4096


@dataclass(slots=True)
class Lists:
    """Lists of actions: the index of each row into a table of lists."""

    index: NDArray[np.int64]
    """[n], the list of each row; -1 where none was logged."""
    offsets: NDArray[np.int64]
    """[t + 1], list i holds the items offsets[i] to offsets[i + 1]."""
    items: NDArray[Any]
    """[m] codes of names, or [m, F] numbers."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[n], items in the list of each row; 0 where none was logged."""
        if len(self.offsets) == 1:
            return np.zeros(len(self.index), np.int64)
        return np.where(self.index < 0, 0, np.diff(self.offsets)[self.index])

    def take(self, rows: NDArray[Any]) -> "Lists":
        """Of some rows, in their order. The lists stay."""
        return Lists(self.index[rows], self.offsets, self.items)

    def compact(self) -> "Lists":
        """The same without lists that no row has."""
        mark = np.zeros(len(self.offsets), np.bool_)
        mark[self.index] = True  # of rows without a list: the last place, which is that of no list
        used = np.flatnonzero(mark[:-1])
        if len(used) == len(self.offsets) - 1:
            return self
        place = np.zeros(len(self.offsets), np.int64)
        place[used] = np.arange(len(used))
        offsets = offsets_of(np.diff(self.offsets)[used])
        return Lists(np.where(self.index < 0, -1, place[self.index]), offsets, self._items_of(used))

    def flat(self) -> "Lists":
        """The same with a list for each row, in the order of rows; rows without one get an empty one."""
        lengths = self.lengths
        rows = np.arange(len(self.index))
        index = np.where(self.index < 0, -1, rows)
        return Lists(index, offsets_of(lengths), self._items_of(self.index[lengths > 0]))

    def _items_of(self, which: NDArray[np.int64]) -> NDArray[Any]:
        """Items of some lists, one list after another."""
        each = np.diff(self.offsets)
        width = int(each[0]) if len(each) else 0
        if width and (each == width).all():  # then a list is a row of an array, and taken in one piece
            shape = self.items.shape[1:]
            return self.items.reshape(len(each), width, *shape).take(which, 0).reshape(len(which) * width, *shape)
        return self.items[slices(self.offsets, which)[0]]


def no_lists(rows: int, items: NDArray[Any]) -> Lists:
    """No list for any row; `items` is an empty array of the right type."""
    return Lists(np.full(rows, -1, np.int64), np.zeros(1, np.int64), items[:0])


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """[t + 1] from lengths [t]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def slices(offsets: NDArray[np.int64], which: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of the items of some lists, one list after another, and the offsets that these then have."""
    lengths = np.diff(offsets)[which]
    new = offsets_of(lengths)
    return np.repeat(offsets[which] - new[:-1], lengths) + np.arange(int(new[-1])), new


def deduplicate(lists: Lists, hashes: Callable[[NDArray[Any]], Words]) -> Lists:
    """Keep distinct lists only, if that saves most of them; `hashes` gives lanes [2, m] of items.

    Lists are taken for equal if their hashes are.
    """
    number = len(lists.offsets) - 1
    if number < 2:
        return lists
    if _all_same(lists):
        kept, place = np.zeros(1, np.int64), np.zeros(number, np.int64)
    else:
        few = lists.offsets[: _LOOKED_AT + 1]
        first, _ = hash_lists(hashes(lists.items[: few[-1]]), few)
        if number > _LOOKED_AT and 2 * len(np.unique(first)) > _LOOKED_AT:
            return lists  # it does not look as if they repeat
        first, second = hash_lists(hashes(lists.items), lists.offsets)
        _, kept, place = np.unique(first ^ (second * np.uint64(3)), return_index=True, return_inverse=True)
        if 4 * len(kept) > number:
            return lists
    take, offsets = slices(lists.offsets, kept)
    return Lists(np.where(lists.index < 0, -1, place[lists.index]), offsets, lists.items[take])


def _all_same(lists: Lists) -> bool:
    """Whether all lists are equal, as in most logs; faster than hashes."""
    length = int(lists.offsets[1])
    if (np.diff(lists.offsets) != length).any():
        return False
    each = lists.items.reshape(len(lists.offsets) - 1, length, *lists.items.shape[1:])
    same = each == each[0]
    if lists.items.dtype.kind == "f" and not same.all():
        same |= np.isnan(each) & np.isnan(each[0])
    return bool(same.all())


def concatenate(parts: list[Lists]) -> Lists:
    """Rows of several, one after another."""
    if len(parts) == 1:
        return parts[0]
    filled = [part for part in parts if len(part.offsets) > 1]
    if len(filled) == 1 and filled[0].items.shape[1:] == max(part.items.shape[1:] for part in parts):
        index = np.concatenate([part.index for part in parts])  # -1 in all rows of the others: no list is copied
        return Lists(index, filled[0].offsets, filled[0].items)
    lists = np.cumsum([0] + [len(part.offsets) - 1 for part in parts])
    items = np.cumsum([0] + [len(part.items) for part in parts])
    return Lists(
        np.concatenate([np.where(part.index < 0, -1, part.index + at) for part, at in zip(parts, lists, strict=False)]),
        np.concatenate(
            [np.zeros(1, np.int64), *(part.offsets[1:] + at for part, at in zip(parts, items, strict=False))]
        ),
        np.concatenate([pad_columns(part.items, max(p.items.shape[1:] for p in parts)) for part in parts]),
    )


def pad_columns(items: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Items [m, F] with more columns, which no one of them has."""
    if items.shape[1:] == shape:
        return items
    return np.pad(items, ((0, 0), (0, shape[0] - items.shape[1])), constant_values=np.nan)
