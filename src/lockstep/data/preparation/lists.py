"""Lists of actions, at most one per row; repeated lists are stored once.

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
        """The lists of some rows; the table is shared."""
        return Lists(self.index[rows], self.offsets, self.items)

    def compact(self) -> "Lists":
        """Drop unused lists from the table."""
        mark = np.zeros(len(self.offsets), np.bool_)
        mark[self.index] = True  # index -1 of rows without a list marks the unused last entry
        used = np.flatnonzero(mark[:-1])
        if len(used) == len(self.offsets) - 1:
            return self
        place = np.zeros(len(self.offsets), np.int64)
        place[used] = np.arange(len(used))
        offsets = offsets_of(np.diff(self.offsets)[used])
        return Lists(np.where(self.index < 0, -1, place[self.index]), offsets, self._items_of(used))

    def flat(self) -> "Lists":
        """Store a list for each row, in the order of rows; an empty one for rows without a list."""
        lengths = self.lengths
        rows = np.arange(len(self.index))
        index = np.where(self.index < 0, -1, rows)
        return Lists(index, offsets_of(lengths), self._items_of(self.index[lengths > 0]))

    def _items_of(self, which: NDArray[np.int64]) -> NDArray[Any]:
        each = np.diff(self.offsets)
        width = int(each[0]) if len(each) else 0
        if width and (each == width).all():  # lists of equal length are rows of an array, which is faster
            shape = self.items.shape[1:]
            return self.items.reshape(len(each), width, *shape).take(which, 0).reshape(len(which) * width, *shape)
        return self.items[slices(self.offsets, which)[0]]


def no_lists(rows: int, items: NDArray[Any]) -> Lists:
    """Rows without lists; `items` determines the type."""
    return Lists(np.full(rows, -1, np.int64), np.zeros(1, np.int64), items[:0])


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Offsets [t + 1] of lists of lengths [t]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def slices(offsets: NDArray[np.int64], which: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of the items of some lists, concatenated, and the offsets of these lists."""
    lengths = np.diff(offsets)[which]
    new = offsets_of(lengths)
    return np.repeat(offsets[which] - new[:-1], lengths) + np.arange(int(new[-1])), new


def deduplicate(lists: Lists, hashes: Callable[[NDArray[Any]], Words]) -> Lists:
    """Store distinct lists once if at least three quarters repeat; `hashes` gives lanes [2, m] of items.

    Lists with equal hashes count as equal.
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
            return lists  # the first lists hardly repeat
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
    """Concatenate rows."""
    if len(parts) == 1:
        return parts[0]
    filled = [part for part in parts if len(part.offsets) > 1]
    if len(filled) == 1 and filled[0].items.shape[1:] == max(part.items.shape[1:] for part in parts):
        index = np.concatenate([part.index for part in parts])  # no list is copied: the others have none
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
    """Pad items [m, F] with columns of NaN."""
    if items.shape[1:] == shape:
        return items
    return np.pad(items, ((0, 0), (0, shape[0] - items.shape[1])), constant_values=np.nan)
