"""Hashes that decide the order of prepared rows: the same everywhere, whatever stands beside what is hashed."""

import numpy as np
import polars as pl

from lockstep.data.preparation.hashing import bits, of_columns, of_lists, of_names, of_strings

# Computed once, by this code: data that was prepared before must stay recognisable.
STRING = ["9ac5b8631907a977", "1bdafaf341b8d289"]
COLUMN = ["fcada57ae9d386bb", "e23efe13d5042115"]
WORDS = ["a", "", "ab", "ba", "abcdefgh", "abcdefghi", "é" * 9, "a\0", "episode-17", "episode-71"]


def test_hashes_of_strings_do_not_depend_on_their_neighbours():
    together = of_strings(pl.Series(WORDS))
    alone = np.concatenate([of_strings(pl.Series([word])) for word in WORDS], axis=1)
    np.testing.assert_array_equal(together, alone)
    assert len(set(together[0].tolist())) == len(set(together[1].tolist())) == len(WORDS)


def test_hashes_are_what_they_were():
    assert [f"{lane:016x}" for lane in of_strings(pl.Series(["episode-17"]))[:, 0].tolist()] == STRING
    assert [f"{lane:016x}" for lane in of_columns("x", [("y", bits(np.array([0.5])))], 1)[:, 0].tolist()] == COLUMN


def test_zeros_are_one_number_and_so_are_nans():
    other = np.array([0x7FF8000000000001], np.uint64).view(np.float64)
    assert bits(np.array([0.0])) == bits(np.array([-0.0]))
    assert bits(np.array([np.nan])) == bits(other)
    assert bits(np.array([1.0])) != bits(np.array([1.0 + 1e-15]))


def test_lists_differ_by_their_items_their_order_and_where_they_end():
    items = np.stack([np.array([1, 2, 2, 1, 1, 2, 0], np.uint64)] * 2)
    hashed = of_lists(items, np.array([0, 2, 4, 4, 6, 7]))
    assert hashed[:, 0].tolist() == hashed[:, 3].tolist()
    assert len(set(hashed[0].tolist())) == len(set(hashed[1].tolist())) == 4


def test_a_million_numbers_do_not_collide():
    lanes = of_columns("x", [("y", np.arange(1_000_000, dtype=np.uint64))], 1_000_000)
    assert all(len(np.unique(lane)) == 1_000_000 for lane in lanes)
    ones = np.unpackbits(lanes[0].view(np.uint8)).mean()
    assert abs(ones - 0.5) < 1e-3
    assert of_names(["x"]).shape == (1, 2)
