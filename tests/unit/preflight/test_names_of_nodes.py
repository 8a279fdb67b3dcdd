"""The nodes of ranks, by which the preflight names them."""

import pytest

from lockstep.preflight.compare import labelled, on_nodes


def rank(node, host, local_size=2):
    return {"node": node, "host": host, "local_size": local_size}


@pytest.mark.parametrize(
    ("ranks", "names"),
    [
        ([rank(0, "a"), rank(0, "a"), rank(2, "b"), rank(2, "b")], ["a", "a", "b", "b"]),
        ([rank(0, "a"), rank(0, "a"), rank(2, "a"), rank(2, "a")], ["node 0 of a"] * 2 + ["node 1 of a"] * 2),
        # Local ranks 0, 0, 1, 1 of ranks that are placed in turn.
        ([rank(0, "a"), rank(1, "b"), rank(1, "a"), rank(2, "b")], ["a", "b", "a", "b"]),
        ([rank(0, "a", 1), rank(1, "b"), rank(1, "b")], ["a", "b", "b"]),
    ],
    ids=["blocks", "nodes of one machine", "in turn", "uneven"],
)
def test_ranks_have_the_name_of_their_node(ranks, names):
    assert list(labelled(on_nodes(ranks))) == [f"rank {index} ({name})" for index, name in enumerate(names)]
