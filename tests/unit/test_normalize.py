"""Running moments against numpy over everything that was seen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.normalize import DiscountedReturns, RunningMoments


@settings(deadline=None)
@given(
    seed=st.integers(0, 1000),
    sizes=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=4), min_size=1, max_size=5),
    offset=st.sampled_from([0.0, -3.0, 1e6]),
)
def test_moments_are_those_of_all_rows_of_weight_1(seed, sizes, offset):
    """Several updates, each with the sums of several shards."""
    draw = np.random.default_rng(seed)
    moments, seen = RunningMoments(3), []
    for shards in sizes:
        total = np.zeros(moments.num_sums)
        for size in shards:
            rows = (draw.standard_normal((size, 3)) * [1, 10, 0.1] + offset).astype(np.float32)
            weight = (draw.random(size) < 0.8).astype(np.float32)
            weight[0] = 1.0
            total += moments.sums(rows, weight)
            seen.append(rows[weight > 0].astype(np.float64))
        moments.update(total)
    every = np.concatenate(seen)
    assert moments.count == len(every)
    np.testing.assert_allclose(moments.mean, every.mean(0), rtol=1e-9, atol=1e-9)
    # The first update is relative to 0: an offset of 1e6 leaves float64 four digits of a variance of 1.
    np.testing.assert_allclose(moments.variance, every.var(0), rtol=1e-7, atol=1e-3 if offset == 1e6 else 1e-9)


def test_nothing_changes_before_the_first_update_then_everything_is_in_units_of_its_deviation():
    moments, rows = RunningMoments(2), np.array([[1.0, 10.0], [3.0, 50.0]], np.float32)
    assert moments.normalize(rows) is rows
    assert moments.scale(rows) is rows
    moments.update(moments.sums(rows, np.ones(2)))
    normalized = moments.normalize(rows)
    assert normalized.dtype == np.float32
    np.testing.assert_allclose(normalized, [[-1, -1], [1, 1]], rtol=1e-5)
    assert np.abs(moments.normalize(np.full((1, 2), 1e9, np.float32))).max() == 10.0


def test_rewards_are_scaled_without_a_shift():
    moments = RunningMoments(1)
    moments.update(moments.sums(np.array([[2.0], [6.0]]), np.ones(2)))
    scaled = moments.scale(np.array([1.0, -4.0, 0.0, 1e6], np.float32))
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, [0.5, -2.0, 0.0, 10.0], rtol=1e-6)


def test_a_state_is_a_copy_that_can_be_gone_on_from():
    moments = RunningMoments(2)
    moments.update(moments.sums(np.random.default_rng(0).random((9, 2)), np.ones(9)))
    other = RunningMoments(2)
    other.restore(moments.state())
    more = np.random.default_rng(1).random((5, 2))
    for one in (moments, other):
        one.update(one.sums(more, np.ones(5)))
    assert all(np.array_equal(a, b) for a, b in zip(moments.state().values(), other.state().values(), strict=True))


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_discounted_returns_go_on_between_rollouts_and_start_anew_with_episodes(gamma):
    draw = np.random.default_rng(0)
    reward, ended = draw.standard_normal((30, 2)).astype(np.float32), draw.random((30, 2)) < 0.2
    returns = DiscountedReturns(2, gamma)
    found = np.concatenate([returns.update(reward[:13], ended[:13]), returns.update(reward[13:], ended[13:])])
    for b in range(2):
        start = 0
        for t in range(30):
            expected = sum(gamma ** (t - i) * float(reward[i, b]) for i in range(start, t + 1))
            assert found[t, b] == pytest.approx(expected)
            start = t + 1 if ended[t, b] else start
