"""The fixed tree: whoever holds which leaves, the sum is the same expression."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.distributed.tree import owned_nodes, tree_sum
from lockstep.world import block


def expression(low: int, high: int) -> str:
    """The sum over leaves written out, by its definition."""
    if high - low == 1:
        return str(low)
    middle = (low + high) // 2
    return f"({expression(low, middle)}+{expression(middle, high)})"


def add(a: str, b: str) -> str:
    return f"({a}+{b})"


@settings(deadline=None)
@given(ranks=st.integers(1, 16), more=st.integers(0, 20))
def test_any_distribution_of_shards_gives_the_same_expression(ranks, more):
    shards = ranks + more
    known = {}
    for rank in range(ranks):
        mine = block(shards, ranks, rank)
        leaves = {(shard, shard + 1): str(shard) for shard in mine}
        nodes = owned_nodes(mine, shards)
        assert [leaf for low, high in nodes for leaf in range(low, high)] == list(mine)
        known |= {node: tree_sum(leaves, node, add) for node in nodes}
    assert tree_sum(known, (0, shards), add) == expression(0, shards)


def test_aligned_powers_of_two_send_one_node_per_rank():
    assert [owned_nodes(block(16, 4, rank), 16) for rank in range(4)] == [[(0, 4)], [(4, 8)], [(8, 12)], [(12, 16)]]


def test_uneven_blocks_send_as_few_nodes_as_possible():
    assert owned_nodes(range(2), 3) == [(0, 1), (1, 2)]
    assert owned_nodes(range(2, 3), 3) == [(2, 3)]
    assert owned_nodes(range(1, 8), 8) == [(1, 2), (2, 4), (4, 8)]
