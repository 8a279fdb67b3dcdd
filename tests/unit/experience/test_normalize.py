"""Running moments against numpy over everything that was seen."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lockstep.errors import ConfigError
from lockstep.experience.normalize import DiscountedReturns, RunningMoments
from lockstep.session.normalizers import set_first_means


class Alone:
    """What a sum over all shards is where one process holds them all."""

    def sum_statistics(self, rows, tag=""):
        return np.sum(rows, 0)


def updated(moments, shards):
    """One update by the rows and weights of all shards, as `Normalizers` makes it."""
    rows, weights = zip(*shards, strict=True)
    set_first_means(Alone(), [(moments, rows)], weights)
    moments.update(np.sum([moments.sums(*shard) for shard in shards], 0))


@settings(deadline=None)
@example(seed=23, sizes=[[1], [10, 3, 6, 5], [1], [12]], magnitude=4.9375, sign=-1.0, deviation=10**-2.25, drift=0.0)
@given(
    seed=st.integers(0, 1000),
    sizes=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=4), min_size=1, max_size=12),
    magnitude=st.floats(-6, 6),
    sign=st.sampled_from([-1.0, 1.0]),
    deviation=st.one_of(st.just(0.0), st.floats(-6, 3).map(lambda power: 10.0**power)),
    drift=st.sampled_from([0.0, 1.0]),
)
def test_moments_are_those_of_all_rows_of_weight_1(seed, sizes, magnitude, sign, deviation, drift):
    """Several updates, each with the sums of several shards, of any mean and deviation that observations may have."""
    draw, mean = np.random.default_rng(seed), sign * 10.0**magnitude
    moments, seen = RunningMoments(3), []
    for number, shards in enumerate(sizes):
        parts = []
        for size in shards:
            rows = draw.standard_normal((size, 3)) * [1, 0, 0.1] * deviation + mean * (1 + number * drift)
            rows, weight = rows.astype(np.float32), (draw.random(size) < 0.8).astype(np.float32)
            parts.append((rows, weight))
            seen.append(rows[weight > 0].astype(np.float64))
        updated(moments, parts)
        every = np.concatenate(seen)
        assert moments.count == len(every)
        if len(every):
            # Rows are float32: what tells two of them apart is 2^-24 of their size or more.
            largest = np.abs(every).max()  # rows of both signs may have a mean far below their size
            np.testing.assert_allclose(moments.mean, every.mean(0), rtol=1e-12, atol=1e-14 * largest)
            # Rows are taken relative to a mean that is rounded to float64: that error times their deviation stays.
            rounding = 1e-28 * mean**2 + np.finfo(np.float64).eps * largest * every.std(0).max()
            np.testing.assert_allclose(moments.variance, every.var(0), rtol=1e-9, atol=rounding)
            assert np.isfinite(moments.normalize(rows)).all()


def test_rounding_makes_no_variance_negative():
    assert RunningMoments(1).merged(np.array([3.0, 0.3, 0.03 - 1e-12]))["variance"] == 0.0


def test_a_variance_below_0_of_an_earlier_version_is_read_as_0():
    moments = RunningMoments(2)
    moments.restore({"count": np.array([8.0]), "mean": np.array([1.0, 2.0]), "variance": np.array([-1e-9, 4.0])})
    np.testing.assert_array_equal(moments.variance, [0.0, 4.0])
    assert np.isfinite(moments.normalize(np.ones((1, 2), np.float32))).all()


def test_rows_of_weight_0_change_no_moments():
    moments = RunningMoments(2)
    updated(moments, [(np.full((3, 2), 7.0, np.float32), np.zeros(3))])
    assert (moments.count, list(moments.mean), list(moments.variance)) == (0, [0, 0], [1, 1])


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
def test_discounted_returns_continue_between_rollouts_and_reset_with_episodes(gamma):
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


def test_fixed_columns_are_not_normalized_or_clipped():
    """As those of images among numbers: a depth camera's are float32 metres."""
    moments = RunningMoments(4, limit=2.0, fixed=[slice(1, 3)])
    moments.begin_at(np.full(4, 5.0))
    random = np.random.default_rng(0)
    rows = (5 + 3 * random.standard_normal((50, 4))).astype(np.float32)
    for part in np.split(rows, 5):
        moments.update(moments.sums(part, np.ones(len(part))))
    np.testing.assert_array_equal(moments.mean[1:3], 0)
    np.testing.assert_array_equal(moments.variance[1:3], 1)
    np.testing.assert_allclose(moments.variance[[0, 3]], rows[:, [0, 3]].astype(np.float64).var(0))
    normalized = moments.normalize(rows)
    np.testing.assert_array_equal(normalized[:, 1:3], rows[:, 1:3])
    assert np.abs(normalized[:, [0, 3]]).max() == 2.0 < rows[:, 1:3].max()


def test_a_column_is_not_counted_for_each_number():
    with pytest.raises(ConfigError, match=r"rows has shape \[2, 1\]; give \[N, 3\], the size of these moments"):
        RunningMoments(3).sums(np.ones((2, 1)), np.ones(2))
