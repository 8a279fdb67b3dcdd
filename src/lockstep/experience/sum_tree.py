"""A sum tree, to draw in proportion to priorities.

All operations take arrays of leaves. A node has 64 children, not 2: numpy's cost grows with the number of levels, of
which a million leaves need four.
"""

import numpy as np

_CHILDREN = 64


class SumTree:
    """Non-negative numbers at `capacity` leaves, and all their partial sums; changes and draws take O(log n).

    The tree of prioritized replay (Schaul et al., 2016, appendix B.2.1). A node is always recomputed from its children,
    so that rounding errors do not accumulate.

    Args:
        capacity: leaves; all 0 at first.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a sum tree needs at least 1 leaf, not {capacity}")
        self.capacity = capacity
        sizes = [-(-capacity // _CHILDREN)]
        while sizes[-1] > 1:
            sizes.append(-(-sizes[-1] // _CHILDREN))
        # Level l holds [nodes of level l + 1, children]; leaves come first, the root is the sum of the last level.
        self._levels = [np.zeros((size, _CHILDREN)) for size in sizes]

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        return float(self._levels[-1].sum())

    def values(self, index: np.ndarray) -> np.ndarray:
        """The numbers at leaves `index` [N], float64."""
        return self._levels[0].reshape(-1)[index]

    def set(self, index: np.ndarray, value: np.ndarray | float) -> None:
        """Set leaves `index` [N] to `value` [N]; of duplicates the last one counts.

        Raises:
            ValueError: a value is negative or not finite, or a leaf does not exist. Nothing is changed then.
        """
        node, given = np.asarray(index, np.int64), np.asarray(value, np.float64)
        if node.size == 0:
            return
        if not (given.min() >= 0 and given.max() < np.inf):  # neither holds for a NaN
            raise ValueError("a priority must be finite and not negative")
        if node.min() < 0 or node.max() >= self.capacity:
            raise ValueError(f"a leaf outside of 0 to {self.capacity - 1}")
        self._levels[0].reshape(-1)[node] = given
        for level, above in zip(self._levels, self._levels[1:], strict=False):
            node = node // _CHILDREN
            if len(node) > _CHILDREN:
                node = np.unique(node)  # many leaves share their parents
            above.reshape(-1)[node] = level.take(node, 0).sum(1)

    def find(self, mass: np.ndarray) -> np.ndarray:
        """The leaf [N] at which the running sum over all leaves first exceeds `mass` [N].

        With `mass` uniform in [0, total) a leaf is found in proportion to its number. A leaf of 0 is never found,
        however sums were rounded.

        Raises:
            ValueError: all leaves are 0.
        """
        rest = np.maximum(np.asarray(mass, np.float64), 0.0)
        node, row = np.zeros(len(rest), np.int64), np.arange(len(rest))
        for level in reversed(self._levels):
            running = level.take(node, 0).cumsum(1)
            # A mass at or beyond the end, by rounding, selects the last child that is not 0.
            rest = np.minimum(rest, np.nextafter(running[:, -1], 0.0))
            child = (running <= rest[:, None]).sum(1)
            if len(child) and int(child.max()) == _CHILDREN:
                raise ValueError("there is nothing to find: all leaves are 0")
            before = np.where(child > 0, running[row, child - 1], 0.0)
            node, rest = node * _CHILDREN + child, rest - before
        return node
