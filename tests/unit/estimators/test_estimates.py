"""All estimates together: values, skipped estimators with reasons, and warnings."""

import json
from dataclasses import replace

import hand
import numpy as np
import pytest
from test_estimator_formulas import DECISION, TRAJECTORY, A, B, C, random_log

from lockstep.estimators.diagnose import LogStatistics
from lockstep.estimators.estimates import MOST_GROUPS, clipping_thresholds, estimates, group_sizes
from lockstep.estimators.importance import DECISION as OF_DECISIONS
from lockstep.estimators.importance import TRAJECTORY as OF_TRAJECTORIES
from lockstep.estimators.result import METRICS, Estimates
from lockstep.estimators.trajectories import Decisions, Predicted, discounts, summed

BY_WEIGHTS = {*OF_DECISIONS, *OF_TRAJECTORIES} - {"decision_direct", "fitted_q"}
BY_MODELS = {name for name in (*OF_DECISIONS, *OF_TRAJECTORIES) if "dr" in name} | {
    "decision_direct",
    "fitted_q",
    "magic",
}


def found_of(sums, columns=("reward",), **facts):
    return estimates(sums, columns, LogStatistics(**{"rows": int(sums.rows.sum())} | facts))


def large(seed=0, lengths=(3, 2, 4, 1) * 20, ratio=None, **changes):
    """A log with enough of everything."""
    random = np.random.default_rng(seed)
    log = random_log(random, lengths)
    n = log["offsets"][-1]
    log["ratio"] = random.uniform(0.5, 1.5, n) if ratio is None else ratio(n)
    return summed(hand.decisions(**log | changes), (1,) * len(lengths), clipping_thresholds(n, len(lengths)))


def test_values_are_those_worked_out_by_hand():
    found = found_of(hand.sums())["estimates"]["reward"]
    expected = DECISION | TRAJECTORY | {"per_decision_snips": A[0] + A[1]}
    expected["weighted_sequential_dr"] = C[0] + A[0] - B[0] + C[1] + A[1] - B[1]
    assert {name: found[name]["value"] for name in expected} == pytest.approx(expected)
    assert {*found} == {*OF_DECISIONS, *OF_TRAJECTORIES}


def test_normalized_by_the_logged_value():
    found = found_of(hand.sums())
    assert found["logged"]["reward"]["logged"]["value"] == 3.0
    assert found["estimates"]["reward"]["ips"]["normalized"] == pytest.approx(4.0 / 3.0)
    assert found["estimates"]["reward"]["decision_ips"]["normalized"] == pytest.approx(3.0 / (7 / 3))


def test_normalized_increases_with_value_for_negative_rewards():
    """A policy that pays 4 instead of 3 is worse by a third: 2/3, not 4/3."""
    found = found_of(hand.sums(reward=hand.column(-1, -2, -4)))
    assert found["estimates"]["reward"]["ips"]["value"] == pytest.approx(-4.0)
    assert found["estimates"]["reward"]["ips"]["normalized"] == pytest.approx(2.0 / 3.0)
    assert found["estimates"]["reward"]["ips"]["normalized_low"] <= found["estimates"]["reward"]["ips"]["normalized"]


@pytest.mark.parametrize("reward", [(0, 0, 0), (1, -2 + 1e-9, 0), (1, 2, -3)])
def test_normalized_is_none_if_logged_interval_contains_zero(reward):
    found = found_of(hand.sums(reward=hand.column(*reward)))["estimates"]["reward"]
    assert found["ips"]["value"] is not None
    assert found["ips"]["normalized"] is None
    assert found["ips"]["normalized_low"] is None


def test_every_column_has_its_own_estimates():
    found = found_of(large(), ("reward", "clicks"))
    assert {*found["estimates"]} == {*found["logged"]} == {"reward", "clicks"}
    assert found["estimates"]["reward"]["ips"]["value"] != found["estimates"]["clicks"]["ips"]["value"]
    # as if it were alone
    log = random_log(np.random.default_rng(0), (3, 2, 4, 1) * 20)
    predicted = {n: getattr(log["predicted"], n)[:, 1:] for n in ("reward", "policy_reward", "q", "value")}
    alone = large(reward=log["reward"][:, 1:], predicted=Predicted(**predicted))
    other = found_of(alone)["estimates"]["reward"]
    for name, told in found["estimates"]["clicks"].items():
        assert told == pytest.approx(other[name]), name


def test_intervals_hold_their_estimates():
    for told in found_of(large())["estimates"]["reward"].values():
        assert told["low"] < told["value"] < told["high"]
        assert told["std_error"] > 0


def test_interval_of_model_spans_interval_of_its_correction():
    """The model is certain, and wrong: drawing trajectories does not show it."""
    n = sum((3, 2, 4, 1) * 20)
    flat = np.full((n, 2), 7.0)
    found = found_of(large(predicted=Predicted(reward=flat, policy_reward=flat, q=flat, value=flat)))
    told = found["estimates"]["reward"]
    for name, other in (("fitted_q", "weighted_sequential_dr"), ("decision_direct", "decision_dr")):
        assert told[name]["value"] == pytest.approx(7.0)
        assert told[name]["low"] == pytest.approx(told[other]["low"]), name
        assert told[name]["low"] < told[name]["value"] - 1, name


def test_clipping_states_its_bias():
    sums = large(ratio=lambda n: np.where(np.arange(n) == 7, 5.0, 0.9))
    clipped = summed_again(sums)
    told = found_of(clipped)["estimates"]["reward"]
    for name, whole in (("decision_clipped_ips", "decision_ips"), ("clipped_ips", "ips")):
        assert told[name]["bias"] == pytest.approx(told[name]["value"] - told[whole]["value"])
        assert told[name]["bias"] != 0.0
    assert told["decision_clipped_ips"]["missing_weight"] == pytest.approx(0.1, abs=0.02)
    text = Estimates(found_of(clipped)).text()
    assert f"clipping changed clipped_ips by {told['clipped_ips']['bias']:.3g}" in text
    assert "; its weights average 0.90 where 1 is expected" in text
    assert "where 1 is expected" not in Estimates(found_of(large())).text(), "nothing was clipped"


def summed_again(sums):
    """The same with a bound on weights that bites."""
    share = 1.0 / sums.trajectories.sum()
    return replace(
        sums,
        clipped_ratio=np.minimum(sums.ratio, 0.9 * sums.rows),
        clipped_reward=sums.ratio_reward - share,
        clipped_weight=sums.weight * 0.9,
        clipped_returns=sums.weighted_returns - share,
    )


def test_missing_propensities_skip_estimators():
    found = found_of(large(ratio=lambda n: None), no_propensity=200)
    assert {*found["left_out"]} == BY_WEIGHTS
    assert {*found["estimates"]["reward"]} == {"decision_direct", "fitted_q"}
    assert "no row of the log has a propensity" in found["left_out"]["ips"]
    assert found["effective_sample_size"] == {"rows": None, "trajectories": None}
    assert any("do not include how wrong the models may be" in line for line in found["warnings"])


def test_some_propensities_are_not_enough():
    found = found_of(large(ratio=lambda n: None), no_propensity=3)
    assert "3 of 200 rows lack a propensity" in found["left_out"]["magic"]


def test_missing_models_skip_estimators():
    found = found_of(large(predicted=None))
    assert {*found["left_out"]} == BY_MODELS
    assert {*found["estimates"]["reward"]} == {*OF_DECISIONS, *OF_TRAJECTORIES} - BY_MODELS
    assert "estimate=false" in found["left_out"]["magic"]


def test_missing_propensities_and_models_skip_all_estimators():
    found = found_of(large(ratio=lambda n: None, predicted=None), no_propensity=200)
    assert found["estimates"]["reward"] == {}
    assert found["logged"]["reward"]["logged"]["value"] is not None
    assert "propensity" in found["left_out"]["magic"]
    assert "estimate=false" in found["left_out"]["magic"]
    Estimates(found).text()


def test_no_overlap_is_never_an_estimate_of_zero():
    found = found_of(large(ratio=np.zeros))
    assert {*found["left_out"]} == BY_WEIGHTS
    assert "no overlap" in found["left_out"]["ips"]


def test_trajectories_that_the_policy_never_follows_to_the_end():
    ends = np.cumsum((3, 2, 4, 1) * 20) - 1
    found = found_of(large(ratio=lambda n: np.where(np.isin(np.arange(n), ends), 0.0, 1.0)))
    assert {*found["left_out"]} == {"ips", "snips", "clipped_ips"}
    assert "weighted_sequential_dr" in found["estimates"]["reward"]


def test_effective_sample_sizes():
    sums = hand.sums()
    found = found_of(sums)["effective_sample_size"]
    assert found["rows"] == pytest.approx((2 + 0.5 + 1.5) ** 2 / (4 + 0.25 + 2.25))
    assert found["trajectories"] == pytest.approx((1 + 1.5) ** 2 / (1 + 2.25))
    assert found_of(hand.sums((2,)))["effective_sample_size"] == pytest.approx(found)


def test_effective_sample_sizes_of_the_largest_weights_are_counted():
    lengths = (25,) * 1000
    largest = np.exp(345.0)
    found = found_of(large(lengths=lengths, ratio=lambda n: np.full(n, largest)))  # their sum has no finite square
    assert found["effective_sample_size"] == pytest.approx({"rows": 25_000, "trajectories": 1000})
    found = found_of(large(lengths=lengths, ratio=lambda n: np.where(np.arange(n) % 2, largest, 0.0)))
    assert found["effective_sample_size"]["rows"] == pytest.approx(12_500)


def test_huge_weights_whose_squares_are_not_finite_are_told_and_have_standard_errors():
    sums = large()
    ratio = np.linspace(1, 2, 80) * 1e155  # each of some 200 000 rows with the largest weight
    sums = replace(sums, ratio=ratio, ratio_squared=ratio * 1e150, ratio_reward=ratio[:, None] * sums.reward)
    found = found_of(sums)
    assert [line for line in found["warnings"] if "e+154 on average, where 1 is expected" in line], found["warnings"]
    assert found["estimates"]["reward"]["decision_ips"]["std_error"] > 1e150


WARNED = {
    "few trajectories": (lambda: hand.sums(), {}, "the log has 2 trajectories"),
    "few in effect": (
        lambda: large(ratio=lambda n: np.where(np.arange(n) == 5, 400.0, 0.5)),
        {},
        "of 80 trajectories: estimates that weight whole trajectories, and their intervals, are unreliable",
    ),
    "few rows in effect": (
        lambda: large(ratio=lambda n: np.eye(1, n, 5)[0] * n),
        {},
        "of 200 rows: the policy hardly ever takes what the log took",
    ),
    "wrong propensities": (lambda: large(ratio=lambda n: np.full(n, 0.5)), {}, "weights of rows are 0.5 on average"),
    "huge weights": (lambda: large(ratio=lambda n: np.full(n, 1e37)), {}, "weights of rows are 1e+37 on average"),
    "all certain": (lambda: large(ratio=np.ones), {"certain": 200}, "every propensity is 1"),
    "actions never logged": (lambda: large(unlogged=np.full(200, 0.25)), {}, "25% of what the policy does"),
    "cut off": (lambda: large(cut=np.arange(80) < 30), {}, "30 of 80 trajectories are cut off before their end"),
    "gaps": (large, {"gaps": 4}, "rows are missing from the log after 4 rows"),
    "learned from": (large, {"seen": True}, "the policy learned from these very rows"),
}


@pytest.mark.parametrize("case", WARNED)
def test_warnings(case):
    make, facts, line = WARNED[case]
    found = found_of(make(), **facts)
    assert [x for x in found["warnings"] if line in x], found["warnings"]


def test_of_cut_trajectories_magic_counts_in_part_what_comes_after_the_log():
    """Models without error: 5 logged rewards of 1 are worth 4.1, all that would follow 10."""
    random, one = np.random.default_rng(0), np.ones((300, 1))
    offsets = np.arange(61) * 5
    log = Decisions(
        offsets=offsets,
        reward=1 + 8 * random.normal(size=(300, 1)),
        discount=discounts(offsets, 0.9),
        ratio=np.exp(0.3 * random.normal(size=300) - 0.045),
        predicted=Predicted(reward=one, policy_reward=one, q=10 * one, value=10 * one),
        cut=np.ones(60, bool),
    )
    found = found_of(summed(log, (1,) * 60, clipping_thresholds(300, 60)))
    told = {name: one["value"] for name, one in found["estimates"]["reward"].items()}
    assert told["fitted_q"] == pytest.approx(10.0)
    assert told["weighted_sequential_dr"] < 4.1 and told["weighted_sequential_dr"] + 0.5 < told["magic"] < 9.5
    assert any("all estimates but fitted_q, and magic in part, count only" in line for line in found["warnings"])


def test_good_log_causes_no_warning():
    assert found_of(large())["warnings"] == []


def test_decision_and_trajectory_estimates_agree_for_bandits():
    """Where each trajectory is one decision, both kinds of estimates are of the same thing."""
    random = np.random.default_rng(0)
    n = 50
    names = ("reward", "policy_reward", "q", "value")
    model = [random.normal(size=(n, 1)) for _ in range(2)]
    offsets = np.arange(n + 1)
    log = Decisions(
        offsets=offsets,
        reward=random.normal(size=(n, 1)),
        discount=discounts(offsets, 0.5),
        ratio=random.uniform(0.2, 2, n),
        predicted=Predicted(**dict(zip(names, [*model, *model], strict=True))),
    )
    told = found_of(summed(log, (1,) * n, clipping_thresholds(n, n)))["estimates"]["reward"]
    for name in ("ips", "snips", "clipped_ips"):
        assert told[name]["value"] == pytest.approx(told[f"decision_{name}"]["value"]), name
        assert told[name]["low"] == pytest.approx(told[f"decision_{name}"]["low"]), name
    assert told["sequential_dr"]["value"] == pytest.approx(told["decision_dr"]["value"])
    assert told["fitted_q"]["value"] == pytest.approx(told["decision_direct"]["value"])
    assert told["per_decision_snips"]["value"] == pytest.approx(told["snips"]["value"])


def test_one_trajectory_has_no_interval():
    found = found_of(hand.sums((2,)))["estimates"]["reward"]["ips"]
    assert found["value"] == pytest.approx(4.0)
    assert found["low"] is None
    assert found["high"] is None


def test_the_seed_decides_the_draws():
    sums = large()
    first, again, other = (estimates(sums, ("reward",), LogStatistics(rows=200), seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first["estimates"]["reward"]["ips"]["low"] != other["estimates"]["reward"]["ips"]["low"]


@pytest.mark.parametrize(("mine", "total"), [(1, 1), (1000, 1000), (1001, 1001), (10, 25_000), (123_457, 123_457)])
def test_groups_are_of_one_size_and_not_too_many(mine, total):
    sizes = group_sizes(mine, total)
    assert sum(sizes) == mine
    assert {*sizes[:-1]} <= {sizes[0]}
    assert 0 < sizes[-1] <= sizes[0]
    if mine == total:
        assert len(sizes) <= MOST_GROUPS
    assert total > MOST_GROUPS or {*sizes} == {1}


def test_results_are_plain_values():
    found = found_of(large(), ("reward", "clicks"))
    json.dumps(found, allow_nan=False)
    told = Estimates(found)
    assert {*told.metrics()} == {*METRICS}
    assert told.metrics()["estimate/ips"] == found["estimates"]["reward"]["ips"]["value"]
    text = told.text()
    for word in ("reward of a trajectory", "clicks of one decision", "weighted_sequential_dr", "normalized"):
        assert word in text


def test_skipped_estimates_are_not_in_metrics():
    told = Estimates(found_of(large(ratio=lambda n: None), no_propensity=200))
    assert {*told.metrics()} == {
        "estimate/logged",
        "estimate/decision_logged",
        "estimate/decision_direct",
        "estimate/fitted_q",
    }
    assert "warning: left out: " in told.text()


def test_fewer_draws_where_trajectories_are_very_long(monkeypatch):
    assert found_of(large())["resamples"] == 1000
    monkeypatch.setattr("lockstep.estimators.estimates._WORK", 80 * 4 * 4 * 500.0)
    assert found_of(large(), ("reward",))["resamples"] == 500
    monkeypatch.setattr("lockstep.estimators.estimates._WORK", 1.0)
    assert found_of(large())["resamples"] == 200
