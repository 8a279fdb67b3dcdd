"""Each estimator on two trajectories, against numbers worked out by hand."""

from math import sqrt

import hand
import numpy as np
import pytest

from lockstep.estimators.importance import decision_estimates, j_step_returns, logged, trajectory_estimates
from lockstep.estimators.trajectories import Sums, discounts, summed, weights

ALL = np.ones((1, 2))

# w = 2, 1 and 1.5; G = 1 + 0.5 * 2 = 2 and 4.
DECISION = {
    "decision_direct": (0.8 + 1.2 + 2.5) / 3,
    "decision_ips": (2 * 1 + 0.5 * 2 + 1.5 * 4) / 3,
    "decision_snips": (2 * 1 + 0.5 * 2 + 1.5 * 4) / (2 + 0.5 + 1.5),
    "decision_clipped_ips": (sqrt(3) * 1 + 0.5 * 2 + 1.5 * 4) / 3,
    "decision_dr": (0.8 + 1.2 + 2.5 + 2 * (1 - 0.5) + 0.5 * (2 - 1) + 1.5 * (4 - 3)) / 3,
}
TRAJECTORY = {
    "fitted_q": (1.2 + 2) / 2,
    "ips": (1 * 2 + 1.5 * 4) / 2,
    "snips": (1 * 2 + 1.5 * 4) / (1 + 1.5),
    "clipped_ips": (1 * 2 + sqrt(2) * 4) / 2,
    "per_decision_ips": (2 * 1 + 0.5 * 1 * 2 + 1.5 * 4) / 2,
    "sequential_dr": (1.2 + 2 * (1 + 0.5 * 1.4 - 1.5) + 0.5 * 1 * (2 - 1) + 2 + 1.5 * (4 - 3)) / 2,
}
# In the second step the second trajectory has ended, and still weighs 1.5.
A = (2 * 1 + 1.5 * 4) / 3.5, 0.5 * 1 * 2 / 2.5
B = (2 * 1.5 + 1.5 * 3) / 3.5, 0.5 * 1 * 1 / 2.5
C = (1.2 + 2) / 2, 0.5 * 2 * 1.4 / 3.5


def test_decision_estimates():
    found = decision_estimates(hand.sums(), ALL)
    assert {name: x.item() for name, x in found.items()} == pytest.approx(DECISION)


def test_trajectory_estimates():
    found = trajectory_estimates(hand.sums(), ALL)
    assert {name: x.item() for name, x in found.items()} == pytest.approx(TRAJECTORY)


def test_self_normalized_sums_and_j_step_returns():
    rewards, returns = j_step_returns(hand.sums(), ALL, [-1, 0, 1])
    assert rewards.item() == pytest.approx(A[0] + A[1]), "an ended trajectory must keep its weight"
    expected = [C[0], C[0] + A[0] - B[0] + C[1], C[0] + A[0] - B[0] + C[1] + A[1] - B[1]]
    assert returns[0, :, 0] == pytest.approx(expected)


def test_logged():
    found = logged(hand.sums(), ALL)
    assert found["decision_logged"].item() == pytest.approx((1 + 2 + 4) / 3)
    assert found["logged"].item() == pytest.approx((2 + 4) / 2)


def test_draws_repeat_and_leave_out_trajectories():
    """Drawing the first twice is the same as a log that holds it twice."""
    offsets = np.array([0, 2, 4])
    twice = {"offsets": offsets, "discount": discounts(offsets, hand.GAMMA), "ratio": np.array([2, 0.5, 2, 0.5])}
    predicted = hand.decisions().predicted
    fields = {name: getattr(predicted, name)[[0, 1, 0, 1]] for name in ("reward", "policy_reward", "q", "value")}
    doubled = hand.sums(reward=hand.column(1, 2, 1, 2), predicted=type(predicted)(**fields), **twice)
    draws = np.array([[2.0, 0.0]])
    for estimate in (decision_estimates, trajectory_estimates):
        mine, other = estimate(hand.sums(), draws), estimate(doubled, ALL)
        assert {n: x.item() for n, x in mine.items() if "clipped" not in n} == pytest.approx(
            {n: x.item() for n, x in other.items() if "clipped" not in n}
        )
    steps = [-1, 0, 1]
    for mine, other in zip(j_step_returns(hand.sums(), draws, steps), j_step_returns(doubled, ALL, steps), strict=True):
        assert mine == pytest.approx(other)


def random_log(random, lengths, columns=2):
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    n = offsets[-1]
    ratio = random.exponential(1.0, n) * (random.random(n) > 0.1)
    predicted = [random.normal(size=(n, columns)) for _ in range(4)]
    names = ("reward", "policy_reward", "q", "value")
    return {
        "offsets": offsets,
        "reward": random.normal(size=(n, columns)),
        "discount": discounts(offsets, 0.9),
        "ratio": ratio,
        "predicted": type(hand.decisions().predicted)(**dict(zip(names, predicted, strict=True))),
    }


@pytest.mark.parametrize("groups", [(1,) * 12, (12,), (5, 4, 3)])
def test_groups_do_not_change_the_estimate(groups):
    log = random_log(np.random.default_rng(0), [3, 1, 7, 2, 2, 9, 1, 1, 4, 6, 5, 8])
    one = summed(hand.decisions(**log), (1,) * 12, (2.0, 2.0))
    other = summed(hand.decisions(**log), groups, (2.0, 2.0))
    for estimate in (decision_estimates, trajectory_estimates):
        a, b = estimate(one, np.ones((1, 12))), estimate(other, np.ones((1, len(groups))))
        for name in a:
            assert a[name] == pytest.approx(b[name]), name
    steps = [-1, 0, 3, 8]
    a, b = j_step_returns(one, np.ones((1, 12)), steps), j_step_returns(other, np.ones((1, len(groups))), steps)
    assert a[0] == pytest.approx(b[0])
    assert a[1] == pytest.approx(b[1])


def test_parts_joined_are_the_whole():
    log = random_log(np.random.default_rng(1), [3, 1, 7, 2])
    whole = summed(hand.decisions(**log), (1, 1, 1, 1), (2.0, 2.0))

    def part(first, last):
        rows = slice(log["offsets"][first], log["offsets"][last])
        predicted = {n: getattr(log["predicted"], n)[rows] for n in ("reward", "policy_reward", "q", "value")}
        return hand.decisions(
            offsets=log["offsets"][first : last + 1] - log["offsets"][first],
            reward=log["reward"][rows],
            discount=log["discount"][rows],
            ratio=log["ratio"][rows],
            predicted=type(log["predicted"])(**predicted),
        )

    parts = [summed(part(0, 1), (1,), (2.0, 2.0)), summed(part(1, 4), (1, 1, 1), (2.0, 2.0))]
    joined = Sums.joined([Sums(**one.to_dict()) for one in parts])
    assert joined.has_ratio
    for name, value in whole.to_dict().items():
        assert np.asarray(getattr(joined, name)) == pytest.approx(np.asarray(value)), name


def test_more_steps_than_fit_at_once(monkeypatch):
    log = random_log(np.random.default_rng(2), [3, 11, 7, 2])
    sums = summed(hand.decisions(**log), (1, 1, 1, 1), (2.0, 2.0))
    draws, steps = np.random.default_rng(3).integers(0, 3, (5, 4)).astype(float), [-1, 0, 4, 10]
    whole = j_step_returns(sums, draws, steps)
    monkeypatch.setattr("lockstep.estimators.importance._MAX_ELEMENTS", 5 * 7 * 3)
    parts = j_step_returns(sums, draws, steps)
    assert parts[0] == pytest.approx(whole[0])
    assert parts[1] == pytest.approx(whole[1])


def test_weights():
    offsets = np.array([0, 3, 5, 6])
    found = weights(np.array([2.0, 0.0, 3.0, 0.5, 4.0, 5.0]), offsets)
    assert found == pytest.approx([2, 0, 0, 0.5, 2, 5])


def test_large_weights_stay_finite():
    found = weights(np.full(400, 20.0), np.array([0, 400]))
    assert np.isfinite(found**2).all()
    assert (np.diff(found) >= 0).all()


def test_discounts_by_rows_and_by_time():
    offsets = np.array([0, 3, 5])
    assert discounts(offsets, 0.5) == pytest.approx([1, 0.5, 0.25, 1, 0.5])
    assert discounts(offsets, 0.5, np.array([2.0, 1, 9, 3, 9])) == pytest.approx([1, 0.25, 0.125, 1, 0.125])
    assert discounts(offsets, 0.0) == pytest.approx([1, 0, 0, 1, 0])


def test_without_weight_model_value_remains():
    """From the step at which no trajectory has any weight the model's value stands."""
    sums = hand.sums(ratio=np.array([2.0, 0.0, 0.0]))
    rewards, returns = j_step_returns(sums, ALL, [-1, 0, 1])
    a, b, c = 2 * 1 / 2, 2 * 1.5 / 2, 0.5 * 2 * 1.4 / 2
    assert rewards.item() == pytest.approx(a)
    assert returns[0, :, 0] == pytest.approx([1.6, 1.6 + a - b + c, 1.6 + a - b + c])
