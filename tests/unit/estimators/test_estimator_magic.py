"""MAGIC against one written from the paper with loops, and its blend against a search."""

import itertools

import hand
import numpy as np
import pytest
from test_estimator_formulas import random_log

from lockstep.estimators.importance import j_step_returns
from lockstep.estimators.magic import MAX_RETURNS, blend, steps_to_blend
from lockstep.estimators.trajectories import summed
from quick import others_slow


def slow_return(log, drawn, j):
    """g(j) of the first column over trajectories `drawn`, by Thomas and Brunskill's equation 11."""
    offsets, gamma = log["offsets"], 0.9
    longest = int(np.diff(offsets).max())

    def weight(i, t):
        return np.prod([log["ratio"][offsets[i] + k] for k in range(min(t + 1, offsets[i + 1] - offsets[i]))])

    def normalized(i, t):
        return 1 / len(drawn) if t < 0 else weight(i, t) / sum(weight(k, t) for k in drawn)

    def at(i, t, values):
        return values[offsets[i] + t, 0] if offsets[i] + t < offsets[i + 1] else 0.0

    p, total = log["predicted"], 0.0
    for i in drawn:
        for t in range(j + 1):
            total += gamma**t * normalized(i, t) * at(i, t, log["reward"])
            total -= gamma**t * (normalized(i, t) * at(i, t, p.q) - normalized(i, t - 1) * at(i, t, p.value))
        if j + 1 < longest:
            total += gamma ** (j + 1) * normalized(i, j) * at(i, j + 1, p.value)
    return total


def test_j_step_returns_against_loops():
    random = np.random.default_rng(5)
    log = random_log(random, [3, 1, 4, 2, 5])
    log["ratio"] += 0.1
    sums, steps = summed(hand.decisions(**log), (1,) * 5, (2.0, 2.0)), [-1, 0, 1, 2, 3, 4]
    for drawn in ([0, 1, 2, 3, 4], [2, 2, 2, 0, 4], [1, 1, 3, 3, 3]):
        draws = np.bincount(drawn, minlength=5)[None].astype(float)
        found = j_step_returns(sums, draws, steps)[1][0, :, 0]
        assert found == pytest.approx([slow_return(log, drawn, j) for j in steps])


def objective(x, returns, resampled):
    low, high = np.quantile(resampled[:, -1], [0.05, 0.95])
    low, high = min(low, returns[-1]), max(high, returns[-1])
    bias = np.array([max(g - high, 0) - max(low - g, 0) for g in returns])
    covariance = np.zeros((len(returns), len(returns)))
    for one in resampled:
        away = one - resampled.mean(0)
        covariance += np.array([[a * b for b in away] for a in away]) / (len(resampled) - 1)
    return x @ (covariance + np.array([[a * b for b in bias] for a in bias])) @ x


@pytest.mark.parametrize("seed", others_slow(range(6), 0))
def test_blend_is_the_least_of_all(seed):
    random = np.random.default_rng(seed)
    mixing = random.normal(size=(3, 3))
    returns = random.normal(size=3) * 2
    resampled = returns + random.normal(size=(400, 3)) @ mixing
    x = blend(returns, resampled)
    assert x.sum() == pytest.approx(1.0)
    assert (x >= 0).all()
    grid = [np.array([a, b, 16 - a - b]) / 16 for a, b in itertools.product(range(17), repeat=2) if a + b <= 16]
    best = min(objective(y, returns, resampled) for y in grid)
    assert objective(x, returns, resampled) <= best * (1 + 1e-6), "another blend has a smaller expected error"


def test_bias_counts_as_an_outer_product():
    """Two models that are wrong in opposite directions make up for each other; squares alone would not see it."""
    random = np.random.default_rng(0)
    consistent = random.normal(0, 1, 2000)
    wrong = np.array([-6.0, 6.0]) + random.normal(0, 0.01, (2000, 2))
    x = blend(np.array([-6.0, 6.0, 0.0]), np.column_stack([wrong, consistent]))
    assert x[0] == pytest.approx(x[1], rel=0.1)
    assert x[0] > 0.4, "the opposite biases were not seen to cancel"


def test_a_model_without_visible_bias_is_trusted_and_a_wrong_one_is_not():
    random = np.random.default_rng(0)
    resampled = np.column_stack([random.normal(0, 0.1, 2000), random.normal(0, 1, 2000)])
    assert blend(np.array([0.5, 0.0]), resampled)[0] > 0.95
    assert blend(np.array([9.0, 0.0]), np.array([9.0, 0.0]) + resampled)[0] < 0.05


def test_the_last_return_has_no_bias():
    """Samples without the one trajectory that has the weight are far from the return of all trajectories."""
    random = np.random.default_rng(0)
    resampled = np.column_stack([random.normal(0.0, 1.0, 2000), random.normal(0.0, 0.1, 2000)])
    assert blend(np.array([0.0, 3.0]), resampled)[1] > 0.9


def test_returns_that_do_not_vary():
    assert blend(np.array([1.0, 1.0]), np.ones((50, 2))) == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("longest", [1, 2, 24, 25, 200, 100_000])
def test_steps_to_blend(longest):
    found = steps_to_blend(longest)
    assert found[0] == -1
    assert found[-1] == longest - 1
    assert len(found) <= MAX_RETURNS
    assert found == sorted(set(found))
    if longest < MAX_RETURNS:
        assert len(found) >= min(longest + 1, 10)
