"""A permutation without memory: every row once, all orders equally likely."""

import numpy as np
import pytest

from lockstep.data.permutation import Permutation
from lockstep.world import stream
from quick import others_slow


def order(rows, seed, epoch=0):
    return Permutation(rows, stream(seed, "epoch", epoch))(np.arange(rows))


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 15, 16, 17, 100, 3925, 65536, 100_003])
def test_every_row_occurs_once(rows):
    for seed in range(3):
        assert np.array_equal(np.sort(order(rows, seed)), np.arange(rows))


def test_positions_can_be_queried_independently():
    whole = order(1000, 7)
    permutation = Permutation(1000, stream(7, "epoch", 0))
    assert np.array_equal(permutation(np.array([999, 3, 3, 500])), whole[[999, 3, 3, 500]])
    assert permutation(np.zeros(0, np.int64)).shape == (0,)


def test_order_matches_stored_values():
    """Resumed epochs depend on it, on every machine and in every version."""
    assert order(12, 0).tolist() == [2, 7, 0, 6, 11, 5, 10, 8, 3, 1, 9, 4]
    earlier = Permutation(12, stream(0, "epoch", 0), rounds=6)
    assert earlier(np.arange(12)).tolist() == [5, 9, 2, 7, 8, 11, 6, 0, 4, 3, 10, 1]


def test_huge_permutations_need_no_memory():
    permutation = Permutation(1 << 45, stream(0, "epoch", 0))
    rows = permutation(np.arange(10_000, dtype=np.int64) * 3_000_000_001)
    assert len(np.unique(rows)) == 10_000
    assert rows.min() >= 0
    assert (1 << 44) < rows.max() < (1 << 45)


def chi_square(counts) -> float:
    expected = counts.mean()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("rows", others_slow([3, 6, 40], 40))
def test_rows_are_uniform_over_positions(rows):
    orders = np.array([order(rows, seed) for seed in range(1000)])
    for place in (0, rows // 2, rows - 1):
        # of `rows - 1` degrees of freedom; beyond it less often than once in a million
        bound = rows - 1 + 5 * np.sqrt(2 * (rows - 1)) + 15
        assert chi_square(np.bincount(orders[:, place], minlength=rows)) < bound, place


def test_adjacent_rows_are_independent():
    rows = 1_000_003
    place = Permutation(rows, stream(3, "epoch", 5))(np.arange(1 << 18)) / rows
    pairs = np.bincount((place[::2] * 32).astype(int) * 32 + (place[1::2] * 32).astype(int), minlength=1024)
    steps = np.bincount((np.diff(place) % 1 * 256).astype(int), minlength=256)
    assert chi_square(pairs) < 1023 + 5 * np.sqrt(2 * 1023)
    assert chi_square(steps) < 255 + 5 * np.sqrt(2 * 255)
    for lag in (1, 2, 64, 1000):
        assert abs(np.corrcoef(place[lag:], place[:-lag])[0, 1]) < 5 / np.sqrt(len(place)), lag


@pytest.mark.parametrize("rows", others_slow([12, 20, 50, 100, 400, 1000], 12, 1000))
def test_steps_between_adjacent_rows_are_uniform(rows):
    counts = sum(np.bincount(np.diff(order(rows, seed)) % rows, minlength=rows) for seed in range(1500))
    assert counts[0] == 0
    assert chi_square(counts[1:]) < rows - 2 + 5 * np.sqrt(2 * (rows - 2))


def test_epochs_and_seeds_give_different_orders():
    first = order(5000, 0, 0)
    for other in (order(5000, 0, 1), order(5000, 1, 0)):
        assert (first == other).sum() < 10
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.08
