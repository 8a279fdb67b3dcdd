"""An order of any number of rows that takes no memory: the row of each place is computed when it is asked for.

A Feistel network (Luby and Rackoff, 1988) over the smallest square, or nearly, that has a field for each row: a place
is a column and a row of the square, and each round moves one of them by a keyed hash of the other. That can be undone,
so it is a permutation of the fields. A field beyond the last row is sent through again until it is a row ("cycle
walking"; Black and Rogaway, 2002), which leaves a permutation of the rows alone.
"""

import math

import numpy as np
from numpy.typing import NDArray

from lockstep.data.columns import Index

ROUNDS = 12
"""Of each order. Fewer do not mix small squares: after 6, 1,000 orders of 100 rows show which steps from one row to the
next come too often; after 8, 30,000 orders of 20 rows do."""
_MIN_SIDE = 4
"""Of a smaller square there are too few functions for all orders to be alike."""


class Permutation:
    """A random order of the rows `[0, num_rows)`.

    Args:
        num_rows: how many, below 2 ** 62.
        generator: whose words are the key; the same words give the same order on every machine.
        rounds: how often the places are mixed; another number is another order.
    """

    def __init__(self, num_rows: int, generator: np.random.Generator, rounds: int = ROUNDS) -> None:
        width = max(math.isqrt(max(num_rows - 1, 0)) + 1, _MIN_SIDE)
        self._num_rows = num_rows
        self._sides = np.uint64(width), np.uint64(max(-(-num_rows // width), _MIN_SIDE))
        self._keys = generator.integers(2**64, size=(rounds, 3), dtype=np.uint64) | np.array([1, 0, 1], np.uint64)
        """Odd factors: multiplying by one loses nothing."""

    def __call__(self, place: Index) -> Index:
        """The rows at these places [N] of the order."""
        row = self._shuffled(place.astype(np.uint64))
        beyond = np.flatnonzero(row >= self._num_rows)
        while beyond.size:
            again = self._shuffled(row[beyond])
            row[beyond] = again
            beyond = beyond[again >= self._num_rows]
        return row.astype(np.int64)

    def _shuffled(self, field: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Once through the network."""
        width, _ = self._sides
        down = field // width
        across = field - down * width
        hashed, mixed = np.empty_like(field), np.empty_like(field)
        for number, (first, add, second) in enumerate(self._keys):
            moved, by, side = (down, across, self._sides[1]) if number % 2 else (across, down, width)
            np.multiply(by, first, out=hashed)
            hashed += add
            np.right_shift(hashed, np.uint64(31), out=mixed)
            hashed ^= mixed
            hashed *= second
            hashed >>= np.uint64(32)  # the best bits of a product; times the side, they fit into a word again
            hashed *= side
            hashed >>= np.uint64(32)
            moved += hashed
            np.subtract(moved, side, out=mixed)  # below 0 it wraps around to a large number
            np.minimum(moved, mixed, out=moved)
        down *= width
        down += across
        return down
