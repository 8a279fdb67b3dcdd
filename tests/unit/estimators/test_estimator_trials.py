"""Estimates of a tabular MDP against its values in closed form; `slow` has the whole of it."""

import sys
from pathlib import Path

import numpy as np
import pytest

from lockstep.estimators.importance import DECISION, TRAJECTORY, TRUSTS_MODEL

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import offline_estimators as tabular

ALL = {*DECISION, *TRAJECTORY}


def test_the_truth_is_what_the_policy_earns():
    """By playing it: the policy's own log has its value as the logged one, and the log's own decisions as theirs."""
    mdp = tabular.world()
    own = tabular.log(
        tabular.World(mdp.start, mdp.moves, mdp.rewards, mdp.policy, mdp.policy), 40_000, np.random.default_rng(0)
    )
    before = np.arange(len(own.state)) - np.repeat(own.offsets[:-1], np.diff(own.offsets))
    returns = np.add.reduceat(own.reward * tabular.GAMMA ** before[:, None], own.offsets[:-1])
    assert returns.mean(0) == pytest.approx(mdp.trajectory, abs=4 * returns.std(0).max() / 200)
    logged = tabular.log(mdp, 40_000, np.random.default_rng(0))
    means = (mdp.policy[:, :, None] * mdp.rewards).sum(1)[logged.state]
    assert means.mean(0) == pytest.approx(mdp.decision, abs=4 * means.std(0).max() / 200)


def test_a_few_trials():
    rows = list(tabular.trials(tabular.world(), 150, 20))
    assert {(estimator, column) for estimator, column, *_ in rows} == {(e, c) for e in ALL for c in tabular.COLUMNS}
    for estimator, column, inside, error, width in rows:
        assert inside >= 16, f"{estimator} of {column}: the truth is in {inside} of 20 intervals"
        assert error < width, f"{estimator} of {column}"


@pytest.mark.slow
def test_every_estimator_holds_the_truth_and_comes_closer():
    """At least 90 of 100 trials at every size, and errors that shrink as the log grows."""
    mdp, errors = tabular.world(), {}
    for size in (100, 400, 1600):
        for estimator, column, inside, error, _ in tabular.trials(mdp, size, 100):
            assert inside >= 90, f"{estimator} of {column}, {size} trajectories: {inside} of 100 intervals"
            errors.setdefault((estimator, column), []).append(error)
    for name, (small, middle, large) in errors.items():
        assert small / middle > 1.5, f"{name}: 4 times the log, error {small} to {middle}"
        assert middle / large > 1.5, f"{name}: 4 times the log, error {middle} to {large}"


@pytest.mark.slow
def test_a_wrong_model_is_corrected():
    """With models that cannot tell states apart, all that weigh by the log still hold the truth and come closer."""
    mdp, errors = tabular.world(), {}
    for size in (100, 1600):
        for estimator, column, inside, error, _ in tabular.trials(mdp, size, 100, "wrong"):
            errors.setdefault((estimator, column), []).append(error)
            if estimator not in TRUSTS_MODEL:
                assert inside >= 90, f"{estimator} of {column}, {size} trajectories: {inside} of 100 intervals"
    for (estimator, column), (small, large) in errors.items():
        if estimator not in TRUSTS_MODEL or estimator == "magic":
            assert small / large > 2, f"{estimator} of {column}: 16 times the log, error {small} to {large}"
    direct = errors["decision_direct", "reward"]
    assert direct[1] > direct[0] / 2, "the wrong model is not wrong; nothing was tested"
