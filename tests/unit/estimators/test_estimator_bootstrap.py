"""Draws, and intervals from them."""

import math

import numpy as np
import pytest

from lockstep.estimators.bootstrap import _student_quantile, draws, interval


def test_draws_are_as_many_as_groups_and_come_from_the_seed():
    found = draws(7, 500, seed=3)
    assert (found.sum(1) == 7).all()
    assert found.mean(0) == pytest.approx(np.ones(7), abs=0.2)
    assert (found.var(0) > 0.5).all()
    assert (found == draws(7, 500, seed=3)).all()
    assert not (found == draws(7, 500, seed=4)).all()


@pytest.mark.parametrize(("freedom", "true"), [(5, 2.5706), (9, 2.2622), (30, 2.0423), (1000, 1.9623)])
def test_quantiles_of_students_t(freedom, true):
    assert _student_quantile(0.975, freedom) == pytest.approx(true, rel=0.01)


def test_interval_of_a_mean_is_students():
    x = np.random.default_rng(0).normal(3.0, 2.0, 12)
    means = draws(12, 40_000, seed=0) @ x / 12
    low, high = interval(means, 12, 0.95)
    half = 2.201 * x.std(ddof=1) / math.sqrt(12)
    assert low == pytest.approx(x.mean() - half, abs=0.1)
    assert high == pytest.approx(x.mean() + half, abs=0.1)


def test_interval_of_a_mean_holds_it_as_often_as_it_says():
    random, inside = np.random.default_rng(1), 0
    resampling = draws(15, 1000, seed=0)
    for _ in range(400):
        low, high = interval(resampling @ random.normal(size=15) / 15, 15, 0.95)
        inside += low <= 0 <= high
    assert 0.92 <= inside / 400 <= 0.98


def test_interval_of_one_group_is_infinite():
    assert interval(np.ones(100), 1, 0.95) == (-math.inf, math.inf)


def test_nan_estimates_are_ignored():
    values = np.concatenate([np.linspace(0, 1, 1001), np.full(5000, np.nan)])
    low, high = interval(values, 10_000, 0.9)
    assert (low, high) == pytest.approx((0.05, 0.95), abs=0.002)
