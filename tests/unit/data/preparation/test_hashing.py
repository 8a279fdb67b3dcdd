"""Hashes that order prepared rows: equal on every machine and in every version."""

import numpy as np
import polars as pl

from lockstep.data.preparation.hashing import float_words, hash_columns, hash_lists, hash_names, hash_strings

# Computed once, by this code: data that was prepared before must stay recognisable.
STRING = ["9ac5b8631907a977", "1bdafaf341b8d289"]
COLUMN = ["fcada57ae9d386bb", "e23efe13d5042115"]
WORDS = ["a", "", "ab", "ba", "abcdefgh", "abcdefghi", "é" * 9, "a\0", "episode-17", "episode-71"]


def test_string_hash_is_independent_of_other_rows():
    together = hash_strings(pl.Series(WORDS))
    alone = np.concatenate([hash_strings(pl.Series([word])) for word in WORDS], axis=1)
    np.testing.assert_array_equal(together, alone)
    assert len(set(together[0].tolist())) == len(set(together[1].tolist())) == len(WORDS)


def test_hashes_match_stored_values():
    assert [f"{lane:016x}" for lane in hash_strings(pl.Series(["episode-17"]))[:, 0].tolist()] == STRING
    assert [
        f"{lane:016x}" for lane in hash_columns("x", [("y", float_words(np.array([0.5])))], 1)[:, 0].tolist()
    ] == COLUMN


def test_signed_zeros_and_nans_hash_equal():
    other = np.array([0x7FF8000000000001], np.uint64).view(np.float64)
    assert float_words(np.array([0.0])) == float_words(np.array([-0.0]))
    assert float_words(np.array([np.nan])) == float_words(other)
    assert float_words(np.array([1.0])) != float_words(np.array([1.0 + 1e-15]))


def test_list_hash_depends_on_items_order_and_length():
    items = np.stack([np.array([1, 2, 2, 1, 1, 2, 0], np.uint64)] * 2)
    hashed = hash_lists(items, np.array([0, 2, 4, 4, 6, 7]))
    assert hashed[:, 0].tolist() == hashed[:, 3].tolist()
    assert len(set(hashed[0].tolist())) == len(set(hashed[1].tolist())) == 4


def test_hashes_of_a_million_numbers_do_not_collide():
    lanes = hash_columns("x", [("y", np.arange(1_000_000, dtype=np.uint64))], 1_000_000)
    assert all(len(np.unique(lane)) == 1_000_000 for lane in lanes)
    ones = np.unpackbits(lanes[0].view(np.uint8)).mean()
    assert abs(ones - 0.5) < 1e-3
    assert hash_names(["x"]).shape == (1, 2)
