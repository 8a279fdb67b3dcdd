"""The sum tree against a plain list: any sizes, any order of changes, draws at every border."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.experience.sum_tree import SumTree

SIZES = st.integers(1, 9) | st.sampled_from([63, 64, 65, 100, 128, 4095, 4096, 4097])
NUMBERS = st.sampled_from([0.0, 0.25, 1.0, 3.0, 1e-3]) | st.floats(0, 1e6, allow_subnormal=False)


def changes(capacity):
    leaf = st.integers(0, capacity - 1)
    return st.lists(st.lists(st.tuples(leaf, NUMBERS), max_size=90), max_size=6)


def changed(capacity, every):
    """A tree and an array after the same changes; of two changes of one leaf the later counts."""
    tree, plain = SumTree(capacity), np.zeros(capacity)
    for pairs in every:
        tree.set(np.array([i for i, _ in pairs], int), np.array([v for _, v in pairs], float))
        for index, value in pairs:
            plain[index] = value
    return tree, plain


@settings(deadline=None)
@given(st.data())
def test_holds_what_a_plain_array_holds(data):
    capacity = data.draw(SIZES)
    tree, plain = changed(capacity, data.draw(changes(capacity)))
    np.testing.assert_array_equal(tree.values(np.arange(capacity)), plain)
    assert tree.total == pytest.approx(plain.sum(), rel=1e-12)


@settings(deadline=None)
@given(st.data())
def test_finds_what_running_sums_find(data):
    capacity = data.draw(SIZES)
    whole = st.lists(st.tuples(st.integers(0, capacity - 1), st.integers(0, 5).map(float)), max_size=90)
    tree, plain = changed(capacity, [data.draw(whole)])
    if not plain.any():
        return
    # Sums of whole numbers are exact: every border is met, from below and from above.
    borders = np.unique(np.concatenate([[0.0], plain.cumsum()]))
    mass = np.concatenate([borders[:-1], borders[:-1] + 0.5, np.nextafter(borders[1:], 0)])
    np.testing.assert_array_equal(tree.find(mass), np.searchsorted(plain.cumsum(), mass, side="right"))


@settings(deadline=None)
@given(st.data())
def test_never_finds_a_leaf_of_zero(data):
    capacity = data.draw(SIZES)
    tree, plain = changed(capacity, data.draw(changes(capacity)))
    fractions = data.draw(st.lists(st.floats(0, 1), min_size=1, max_size=50))
    mass = np.concatenate([np.array(fractions) * tree.total, [0.0, tree.total, 2 * tree.total + 1, -1.0]])
    if plain.any():
        assert (plain[tree.find(mass)] > 0).all()
    else:
        with pytest.raises(ValueError, match="all leaves are 0"):
            tree.find(mass)


def test_the_later_of_two_changes_counts_in_the_sums_too():
    tree = SumTree(200)
    tree.set(np.array([7, 150, 7]), np.array([5.0, 1.0, 2.0]))
    assert (tree.total, tree.values(np.array([7, 150])).tolist()) == (3.0, [2.0, 1.0])


def test_draws_in_proportion():
    tree, priority = SumTree(1000), np.arange(1000.0)
    tree.set(np.arange(1000), priority)
    found = tree.find((np.arange(100_000) + 0.5) / 100_000 * tree.total)
    counted = np.bincount(found, minlength=1000) / 100_000
    np.testing.assert_allclose(counted, priority / priority.sum(), atol=1.01e-5)


def test_a_million_changes_leave_no_error_behind():
    tree, generator = SumTree(500), np.random.default_rng(0)
    for _ in range(2_000):
        tree.set(generator.integers(500, size=500), generator.random(500) * 1e9)
    tree.set(np.arange(500), 1e-9)
    assert tree.total == pytest.approx(500e-9, rel=1e-12)


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_invalid_priorities_are_refused_and_change_nothing(value):
    tree = SumTree(10)
    tree.set(np.array([3]), 1.0)
    with pytest.raises(ValueError, match="finite and not negative"):
        tree.set(np.array([2, 3]), np.array([5.0, value]))
    assert (tree.total, tree.values(np.array([2, 3])).tolist()) == (1.0, [0.0, 1.0])


@pytest.mark.parametrize("leaf", [-1, 10])
def test_a_leaf_that_does_not_exist_is_refused(leaf):
    with pytest.raises(ValueError, match="0 to 9"):
        SumTree(10).set(np.array([leaf]), 1.0)  # 10 lies in the last group, which is larger than what was asked for


def test_a_tree_needs_a_leaf():
    with pytest.raises(ValueError, match="at least 1"):
        SumTree(0)
