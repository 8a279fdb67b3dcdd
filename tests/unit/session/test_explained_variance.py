"""The part of the variance of the targets that the values explain, from sums in float64 and in float32."""

import numpy as np
import pytest

from lockstep.session.normalizers import Normalizers, explained_variance


def on_the_host(target, value, *, normalize_value=False):
    """By the sums over all shards, as the learner gives them."""
    normalizers = Normalizers(None, None, 1, 1, normalize_value=normalize_value)
    if normalize_value:
        normalizers.values.mean[:] = target.mean()
    target, advantage = target - normalizers.target_origin, target - value
    columns = [np.ones(len(target)), advantage, target, np.square(advantage), np.square(target), np.zeros(len(target))]
    statistics, fault = normalizers.update_statistics(np.sum(columns, 1))
    assert fault is None and statistics.weight == 1.0
    return statistics.explained


def in_float32(target, value):
    """As on the device: the mean first, then the squares of deviations from it."""
    target, value = target.astype(np.float32), value.astype(np.float32)
    mean = target.mean()
    return explained_variance(np.square(target - value).mean(), np.square(target - mean).mean(), mean, np)


@pytest.mark.parametrize("found", [on_the_host, in_float32])
@pytest.mark.parametrize("unit", [1e-9, 1e-6, 1.0, 1e6])
def test_it_does_not_depend_on_the_unit_of_the_returns(found, unit):
    random = np.random.default_rng(0)
    target, noise = random.normal(3.0, 1.0, 1000), random.normal(0.0, 10.0, 1000)
    expected = 1 - np.square(noise).mean() / target.var()
    assert expected < -80
    assert found(unit * target, unit * (target - noise)) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("found", [on_the_host, in_float32])
@pytest.mark.parametrize("size", [0.0, 0.1, -3.0])
def test_rounding_of_equal_targets_is_no_variance(found, size):
    target = np.full(1000, size, np.float32)
    target[::2] = np.nextafter(target[0], np.float32(np.inf)) if size else 0.0
    target = target.astype(float)
    assert found(target, target - 1e-3) == pytest.approx(1 - 1e-6 / max(target.var(), 1e-8), rel=0.02)


def test_rounding_is_that_of_targets_and_not_of_what_is_left_without_their_mean_so_far():
    target = np.float32(0.1) + np.array([0.0, 1e-8, 0.0, 1e-8])
    assert on_the_host(target, target - 1e-3, normalize_value=True) == pytest.approx(1 - 1e-6 / 1e-8, rel=1e-6)
