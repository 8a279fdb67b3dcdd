"""The sample of a log does not depend on the order of its rows, and is that of one reading."""

import numpy as np
import pytest

from lockstep.data.preparation.blocks import Block
from lockstep.data.preparation.lists import Lists, offsets_of
from lockstep.data.preparation.scan import Sample

SIZE = 100


def block_of(lengths):
    """Rows with a list of each of these lengths; items name the row."""
    n = len(lengths)
    lists = Lists(np.arange(n), offsets_of(lengths), np.repeat(np.arange(n), lengths))
    return Block({"sequence_number": np.arange(n)}, {"possible_actions": lists})


def sampled(block, key, parts):
    """The sequence numbers and the lengths of lists in the sample of these parts."""
    sample = Sample(SIZE, ["possible_actions"])
    for part in parts:
        sample.add(block.take(part), key[part])
    _, found = sample.read()
    return found.columns["sequence_number"].tolist(), found.lists["possible_actions"].lengths.tolist()


@pytest.mark.parametrize("seed", range(6))
def test_lists_behind_the_first_items_are_dropped_in_any_order(seed):
    draws = np.random.default_rng(seed)
    block = block_of(draws.choice([1, 2, 3, 90], 1200))
    key = draws.integers(0, 1 << 63, (1200, 2), dtype=np.uint64)
    key[:, 0] >>= np.uint64(55)  # some first words are equal
    rows, lengths = whole = sampled(block, key, [np.arange(1200)])
    real = block.lists["possible_actions"].lengths[rows]
    kept = np.cumsum(real) <= SIZE
    kept[0] = True
    assert lengths == np.where(kept, real, 0).tolist()
    for order in (np.arange(1200), np.arange(1200)[::-1], draws.permutation(1200)):
        assert sampled(block, key, np.split(order, 40)) == whole
