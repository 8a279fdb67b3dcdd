"""Rows spilled to the disk are read back by ranges of trajectories."""

import numpy as np
import pytest

from lockstep.data.preparation import spill
from lockstep.data.preparation.blocks import Block
from lockstep.data.preparation.lists import Lists, deduplicate, no_lists
from lockstep.world import stream


def block(draws, rows, width=2, *, same=False):
    """Rows with a list of actions each, some of which are empty or not there."""
    lengths = np.full(1, 3) if same else draws.integers(0, 4, size=rows)
    offsets = np.append(0, np.cumsum(lengths))
    index = np.zeros(rows, np.int64) if same else np.arange(rows)
    index[draws.random(rows) < 0.2] = -1
    items = draws.random((int(offsets[-1]), width))
    items[draws.random(items.shape) < 0.2] = np.nan
    columns = {
        "hash_0": draws.integers(2**64, size=rows, dtype=np.uint64),
        "sequence_number": np.arange(rows, dtype=np.int64),
        "state:1": draws.random(rows),
        "file": np.full(rows, draws.integers(99), np.uint32),
    }
    return Block(columns, {"possible_actions": Lists(index, offsets, items)})


def rows_of(some):
    """Every row of a block as plain values; columns that are absent are left out."""
    lists = some.lists["possible_actions"]
    found = []
    for i in range(len(some)):
        which = lists.index[i]
        items = None
        if which >= 0:
            items = [
                [x for x in item if x == x]
                for item in lists.items[lists.offsets[which] : lists.offsets[which + 1]].tolist()
            ]
        values = {name: column[i].item() for name, column in some.columns.items()}
        found.append(str(sorted((n, v) for n, v in values.items() if v == v)) + str(items))
    return sorted(found)


@pytest.mark.parametrize("whole", [0, 1 << 24])
@pytest.mark.parametrize("same", [True, False])
def test_spilled_rows_are_read_back(tmp_path, monkeypatch, whole, same):
    monkeypatch.setattr(spill, "_WHOLE", whole)
    draws = stream(0, "test")
    blocks = [block(draws, 100, same=same) for _ in range(10)]
    blocks[3].columns["state:2"] = np.arange(100.0)
    kept = spill.Spill(tmp_path, 10_000)
    expected = sorted(row for one in blocks for row in rows_of(one))
    for one in blocks:
        kept.add(one)
    kept.flush()
    assert len(list(tmp_path.iterdir())) > 2
    groups = list(kept.groups(5_000))
    found = [kept.read(*group) for group in groups]
    assert len(found) > 5
    assert max(map(len, found)) < 300
    assert [first for first, _ in groups[1:]] == [last for _, last in groups[:-1]], "ranges leave none out"
    assert sorted(row for one in found for row in rows_of(one)) == expected
    highest = [int(one.columns["hash_0"].max()) for one in found]
    assert highest == sorted(highest)


def test_lists_may_gain_features(tmp_path):
    draws = stream(1, "test")
    kept = spill.Spill(tmp_path, 1)
    for width in (1, 3):
        kept.add(block(draws, 50, width))
    kept.flush()
    found = kept.read(0, 1 << 12).lists["possible_actions"]
    assert found.items.shape[1] == 3


def twice(items):
    """Numbers as their own hashes."""
    return np.stack([items, items]).astype(np.uint64)


def test_deduplicate_keeps_every_distinct_list():
    items = np.array([1, 2, 1, 2, 1, 2, 2, 1], np.int32)
    lists = Lists(np.array([3, -1, 2, 1, 0, 0]), np.array([0, 2, 4, 6, 8]), items)
    few = deduplicate(lists, twice)
    assert len(few.offsets) == 5, "a half is not worth a table"
    many = Lists(np.arange(40), np.arange(41) * 2, np.tile(np.array([1, 2], np.int32), 40))
    many.items[-2:] = 2, 1
    few = deduplicate(many, twice)
    assert len(few.offsets) == 3
    for i in range(40):
        which = few.index[i]
        assert few.items[few.offsets[which] : few.offsets[which + 1]].tolist() == ([2, 1] if i == 39 else [1, 2])


def test_no_lists_are_empty():
    empty = no_lists(3, np.zeros((0, 2)))
    assert empty.lengths.tolist() == [0, 0, 0]
    assert empty.flat().offsets.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(("kinds", "kept"), [(3, 3), (20_000, 20_000), (15_000, 20_000)])
def test_large_tables_are_deduplicated_only_if_lists_repeat(kinds, kept):
    items = (np.arange(20_000) % kinds).astype(np.int32)
    found = deduplicate(Lists(np.arange(20_000), np.arange(20_001), items), twice)
    assert len(found.offsets) - 1 == kept
    np.testing.assert_array_equal(found.items[found.offsets[:-1]][found.index], items)
