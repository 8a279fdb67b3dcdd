"""What `offline evaluate` concludes from its tables, in words."""

import json

import numpy as np
import pytest
from test_estimates import found_of, large

from lockstep.estimators.recommendation import disagreements
from lockstep.estimators.result import Estimates
from lockstep.estimators.trajectories import Predicted


def words(found):
    return "\n".join(found["verdict"]["words"])


def flat(value):
    n = sum((3, 2, 4, 1) * 20)
    same = np.full((n, 2), value)
    return Predicted(reward=same, policy_reward=same, q=same, value=same)


def test_where_weights_hold_the_corrected_models_are_believed():
    found = found_of(large())
    assert (found["verdict"]["trajectory"], found["verdict"]["decision"]) == ("weighted_sequential_dr", "decision_dr")
    told = found["estimates"]["reward"]["weighted_sequential_dr"]
    assert f"of a trajectory: use weighted_sequential_dr, {told['value']:.4g} [{told['low']:.4g}, " in words(found)
    assert "by weighted_sequential_dr, " in Estimates(found).line()
    json.dumps(found, allow_nan=False)


def test_without_models_the_self_normalized_weights_are_believed():
    found = found_of(large(predicted=None))
    assert (found["verdict"]["trajectory"], found["verdict"]["decision"]) == ("per_decision_snips", "decision_snips")


def test_equal_weights_of_just_enough_trajectories_are_believed():
    """A policy that is judged by its own log: ratios are 1, up to rounding, which makes 20 trajectories 19.9999."""
    found = found_of(large(lengths=(30,) * 20, ratio=lambda n: np.exp(np.random.default_rng(0).normal(0, 1e-4, n))))
    assert 19.99 < found["effective_sample_size"]["trajectories"] < 20
    assert found["verdict"]["trajectory"] == "weighted_sequential_dr"
    assert not any("effective sample size" in line for line in found["warnings"])


CASES = {
    "no propensities": ({"ratio": lambda n: None}, {"no_propensity": 200}, "the log has no propensities"),
    "nothing at all": (
        {"ratio": lambda n: None, "predicted": None},
        {"no_propensity": 200},
        "the log has no propensities",
    ),
    "no overlap": ({"ratio": np.zeros}, {}, "the policy hardly ever takes what the log took"),
    "few in effect": ({"ratio": lambda n: np.eye(1, n, 5)[0] * n}, {}, "effective sample size 1.0 of 200 rows, fewer"),
    "wrong propensities": (
        {"ratio": lambda n: np.full(n, 0.5)},
        {},
        "the weights do not average 1: the log hardly ever takes what the policy takes, or its propensities are wrong",
    ),
    "a policy wider than the log": (
        {"ratio": lambda n: np.full(n, 0.5)},
        {"continuous": True},
        "the weights do not average 1: the log hardly ever takes what the policy takes, or its densities are wrong",
    ),
    "deterministic": (
        {"ratio": lambda n: np.arange(n) % 2 * 1.0},
        {"certain": 200},
        "every propensity is 1, so that the log tells nothing of other actions",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_speaks_against_all_of_them(case):
    changes, facts, why = CASES[case]
    found = found_of(large(**changes), **facts)
    assert found["verdict"]["trajectory"] is found["verdict"]["decision"] is None
    assert f"of one decision: use none of the estimates: {why}" in words(found)
    assert Estimates(found).line().startswith("no estimate of the policy's reward is reliable")
    assert ("fitted_q is what the learned models alone say" in words(found)) == (
        changes.get("predicted", 1) is not None
    )


def test_constant_rewards_and_returns_say_nothing_of_any_policy():
    """The models' rounding must not look like a gain over a log that has no spread at all."""
    n = 200
    model = Predicted(**dict.fromkeys(("reward", "policy_reward", "q", "value"), np.full((n, 1), 0.3005)))
    found = found_of(large(reward=np.full((n, 1), 0.3), predicted=model))
    assert found["verdict"]["decision"] is None
    assert "of one decision: use none of the estimates: every reward in the log is 0.3, so" in words(found)
    assert "direct is what the learned models alone say" not in words(found)
    assert found["verdict"]["trajectory"] == "weighted_sequential_dr", (
        "trajectories of other lengths earn other returns"
    )
    assert "of one decision: estimators disagree" not in words(found)
    alike = found_of(large(lengths=(2,) * 100, reward=np.tile([[1.0], [0.5]], (100, 1)), predicted=None))
    assert alike["verdict"]["trajectory"] is None and alike["verdict"]["decision"] == "decision_snips"
    assert "of a trajectory: use none of the estimates: every return in the log is 1.45, so" in words(alike)
    nothing = found_of(large(lengths=(2,) * 100, reward=np.zeros((n, 1)), predicted=None))
    assert Estimates(nothing).line() == (
        "no estimate of the policy's reward is reliable: every return in the log is 0, so that it cannot tell one "
        "policy from another"
    )


@pytest.mark.parametrize(("number", "named"), [(1, "1 trajectory"), (19, "19 trajectories")])
def test_many_rows_of_few_trajectories_are_not_believed(number, named):
    """Intervals resample trajectories: of one there is none, however many rows it has."""
    found = found_of(large(lengths=(60,) * number))
    assert found["effective_sample_size"]["rows"] > 20
    assert found["verdict"]["trajectory"] is found["verdict"]["decision"] is None
    assert found["verdict"]["reasons"]["decision"] == (
        f"the log has {named}, and intervals from fewer than 20 are unreliable"
    )
    assert "disagree" not in words(found)
    assert found_of(large(lengths=(60,) * 20))["verdict"]["decision"] == "decision_dr"


def test_a_policy_without_a_density_is_the_reason_even_if_every_row_has_one():
    found = found_of(large(ratio=lambda n: None), no_density=True)
    assert found["verdict"]["reasons"]["trajectory"].startswith("the policy takes the same continuous action")
    assert "propensities" not in words(found)
    assert "propensity" not in found["left_out"]["ips"]
    both = found_of(large(ratio=lambda n: None), no_density=True, no_propensity=200)
    assert "with policy=sampled); and no row of the log has a propensity" in both["left_out"]["ips"]


def test_trajectories_may_be_too_far_apart_where_decisions_are_not():
    """A product of many ratios leaves a few trajectories with all of the weight."""
    random = np.random.default_rng(0)
    found = found_of(large(lengths=(40,) * 60, ratio=lambda n: random.choice([0.2, 1.8], n)))
    assert found["verdict"]["trajectory"] is None
    assert found["verdict"]["decision"] == "decision_dr"
    assert "of a trajectory: use none of the estimates: effective sample size" in words(found)
    assert Estimates(found).line().startswith("estimated reward of one decision: ")


@pytest.mark.parametrize(("moved", "wanted"), [(0.0, "not clearly different from"), (-4.0, "less"), (4.0, "more")])
def test_compared_with_what_the_log_earned(moved, wanted):
    found = found_of(large())
    logged = found["logged"]["reward"]["logged"]
    found["estimates"]["reward"]["weighted_sequential_dr"] |= {
        name: logged[name] + moved for name in ("value", "low", "high")
    }
    line = Estimates(found).line()
    assert f"{wanted} " in line and "that the log earned" in line


def test_estimators_whose_intervals_do_not_meet_disagree(monkeypatch):
    found = found_of(large(), ("reward", "clicks"))
    assert "disagree" not in words(found)
    for name in ("ips", "snips"):
        found["estimates"]["clicks"][name] |= {"value": 99.0, "low": 98.0, "high": 100.0}
    found["estimates"]["clicks"]["magic"] |= {"low": None}  # without end: it meets everything
    (line,) = disagreements("trajectory", "clicks", found)
    assert line.startswith("clicks of a trajectory: estimators disagree, since their intervals do not meet")
    assert "fitted_q" in line and "ips 99 [98, 100]" in line
    assert line.endswith("; and 8 more pairs"), "six others with each of two, four of which are named"
    assert "magic" not in line
    assert disagreements("decision", "clicks", found) == []
    monkeypatch.setattr("lockstep.estimators.recommendation._MAX_PAIRS", 11)
    assert disagreements("trajectory", "clicks", found)[0].endswith("; and 1 more pair")


def test_sample_size_widening_and_normalized_are_explained():
    found = found_of(large(predicted=flat(7.0)))
    sizes = found["effective_sample_size"]
    assert f"effective sample size {sizes['trajectories']:.0f} of 80 trajectories, " in words(found)
    assert found["widened"]["reward"]["fitted_q"] == "weighted_sequential_dr"
    assert "fitted_q by that of weighted_sequential_dr (of a trajectory)" in words(found)
    assert {*found["widened"]["reward"]} <= {"fitted_q", "magic", "decision_direct"}
    lines = words(found_of(large(reward=np.ones((200, 1)), predicted=None)))
    assert "normalized compares with what the log earned: 1 is as much" in lines
    assert "normalized is left out: the interval of what the log earned holds 0" in words(
        found_of(large(reward=np.tile([[1.0], [-1.0]], (100, 1)), predicted=None))
    )
    assert "widened" not in words(found_of(large(predicted=None)))
    text = Estimates(found).text()
    assert all(f"  {line}" in text for line in found["verdict"]["words"])
