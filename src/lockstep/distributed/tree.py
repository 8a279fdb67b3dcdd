"""The fixed balanced binary tree over shards along which every sum is taken.

Floating-point addition is not associative: a sum has the same bits on 1, 2 and 8 ranks only if its order does not
depend on which rank holds which shard. A node `(low, high)` sums shards `low` to `high - 1`; its children halve it.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")
Node = tuple[int, int]


def owned_nodes(shards: range, num_shards: int) -> list[Node]:
    """The largest complete subtrees within a rank's block of shards, left to right: the rank can sum these alone."""

    def visit(low: int, high: int) -> list[Node]:
        if low >= shards.stop or high <= shards.start:
            return []
        if low >= shards.start and high <= shards.stop:
            return [(low, high)]
        middle = (low + high) // 2
        return visit(low, middle) + visit(middle, high)

    return visit(0, num_shards)


def tree_sum(values: Mapping[Node, T], node: Node, add: Callable[[T, T], T]) -> T:
    """The sum at `node`, from values at or below it; only the tree defines the order of additions."""
    if node in values:
        return values[node]
    low, high = node
    middle = (low + high) // 2
    return add(tree_sum(values, (low, middle), add), tree_sum(values, (middle, high), add))
