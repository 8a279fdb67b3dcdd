"""A digest of a log that is independent of the order of its rows, to recognize copies.

It is the sum of 128-bit hashes of all rows, of their keys and of all their contents.
"""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.data.logs.column_names import FLAGS, LISTS
from lockstep.data.preparation.blocks import Block, name_hashes
from lockstep.data.preparation.hashing import Words, absorb_, finish_, float_words, hash_lists, hash_names

_MASK = (1 << 64) - 1

Sums = tuple[int, int, int, int]
"""Of both lanes, modulo 2^64: of keys, and of keys with contents."""


class Digest:
    """The sum over all added rows.

    `columns` occur in any row of the log; `names` are the codes of discrete actions; `hashes` gives lanes [2, m] of the
    items of lists.
    """

    def __init__(
        self, columns: Collection[str], names: dict[str, int], hashes: Callable[[NDArray[Any]], Words]
    ) -> None:
        kinds = ("state", "action", "metric", "reward", "propensity", "log_probability", "time_diff", *FLAGS)
        self._columns = sorted(name for name in columns if name.partition(":")[0] in kinds)
        self._next = sorted(name for name in columns if name.startswith("next_state:"))
        self._lists = [name for name in LISTS if name in columns]  # of the log: a group of its rows may have none
        self._salt = dict(zip(sorted(columns), hash_names(sorted(columns))[:, 0], strict=True))
        self._names, self._hashes = names, hashes
        self._keys, self._rows = [0, 0], [0, 0]

    def add(self, sums: Sums) -> None:
        """Add the sums of some rows."""
        for total, lanes in ((self._keys, sums[:2]), (self._rows, sums[2:])):
            total[:] = [(one + more) & _MASK for one, more in zip(total, lanes, strict=True)]

    def sums(self, block: Block, key: Words, last: NDArray[np.int64]) -> Sums:
        """Sums of rows with keys [n, 2]; logged next states count for the rows `last`, which no row follows."""
        lanes = key.T.copy()
        keys = lanes.sum(1, dtype=np.uint64)
        for name in self._columns:
            self._absorb(lanes, block, name)
        for name in self._lists:
            lists = block.lists[name]
            table = np.zeros((2, len(lists.offsets)), np.uint64)
            table[:, :-1] = hash_lists(self._hashes(lists.items), lists.offsets)
            absorb_(lanes, table[0, lists.index])
            absorb_(lanes, table[1, lists.index])
        if self._next and last.size:
            ends, few = block.take(last), lanes[:, last]
            for name in self._next:
                self._absorb(few, ends, name)
            lanes[:, last] = few
        rows = finish_(lanes).sum(1, dtype=np.uint64)
        return int(keys[0]), int(keys[1]), int(rows[0]), int(rows[1])

    @property
    def rows(self) -> str:
        """Of keys and contents, in hex."""
        return "".join(f"{lane:016x}" for lane in self._rows)

    @property
    def keys(self) -> str:
        """Of keys alone."""
        return "".join(f"{lane:016x}" for lane in self._keys)

    def _absorb(self, lanes: Words, block: Block, name: str) -> None:
        column = block.columns.get(name)
        if column is None:
            words = float_words(np.full(1, np.nan)) if name not in FLAGS else np.full(1, -1, np.int64).view(np.uint64)
        elif name == "action":
            words = name_hashes(column, self._names)[0]
        else:
            words = float_words(column) if column.dtype.kind == "f" else column.astype(np.int64).view(np.uint64)
        absorb_(lanes, words ^ self._salt[name])
