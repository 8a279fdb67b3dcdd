"""A keyed permutation of any number of rows without memory: the row at each position is computed on demand.

A Feistel network (Luby and Rackoff, 1988) over a grid, as square as possible, with a cell for each row: a position is a
column and a row of the grid, and each round shifts one of them by a keyed hash of the other. Each round is invertible,
so the result is a permutation of the cells. A cell beyond the last row is permuted again until it is a row ("cycle
walking"; Black and Rogaway, 2002), which gives a permutation of the rows.
"""

import math

import numpy as np
from numpy.typing import NDArray

from lockstep.data.columns import Index

ROUNDS = 12
"""Rounds of each permutation. Fewer do not mix small grids: after 6 rounds, 1,000 permutations of 100 rows show steps
from one row to the next that are too frequent; after 8 rounds, 30,000 permutations of 20 rows do."""
_MIN_SIDE = 4
"""Smaller grids have too few round functions for all permutations to be equally likely."""


class Permutation:
    """A random permutation of the rows `[0, num_rows)`, below 2 ** 62; equal keys give equal ones on every machine."""

    def __init__(self, num_rows: int, generator: np.random.Generator, rounds: int = ROUNDS) -> None:
        width = max(math.isqrt(max(num_rows - 1, 0)) + 1, _MIN_SIDE)
        self._num_rows = num_rows
        self._sides = np.uint64(width), np.uint64(max(-(-num_rows // width), _MIN_SIDE))
        self._keys = generator.integers(2**64, size=(rounds, 3), dtype=np.uint64) | np.array([1, 0, 1], np.uint64)
        """Factors are odd: multiplying by one is invertible."""

    def __call__(self, place: Index) -> Index:
        """The rows at positions [N] of the permutation."""
        row = self._shuffled(place.astype(np.uint64))
        beyond = np.flatnonzero(row >= self._num_rows)
        while beyond.size:
            again = self._shuffled(row[beyond])
            row[beyond] = again
            beyond = beyond[again >= self._num_rows]
        return row.astype(np.int64)

    def _shuffled(self, field: NDArray[np.uint64]) -> NDArray[np.uint64]:
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
            # The high bits of a product are mixed best; their product with the side fits into 64 bits.
            hashed >>= np.uint64(32)
            hashed *= side
            hashed >>= np.uint64(32)
            moved += hashed
            np.subtract(moved, side, out=mixed)  # wraps around to a large number below 0
            np.minimum(moved, mixed, out=moved)
        down *= width
        down += across
        return down
