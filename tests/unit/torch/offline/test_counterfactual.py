"""From prepared data and a policy to estimates, against loops over rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import made_data
from lockstep import World
from lockstep.data.dataset import Dataset
from lockstep.data.features import Features
from lockstep.errors import ConfigError
from lockstep.estimators.importance import DECISION, TRAJECTORY
from lockstep.run import OfflineRun, ScoreNetworkConfig, override
from lockstep.session.offline import estimate as counterfactual
from lockstep.session.offline import evaluator as judged
from lockstep.session.offline.estimate import estimate
from lockstep.session.offline.policy_spec import OfflinePolicySpec, check_fits
from lockstep.session.policy_file import check_start
from lockstep.torch.comm import Comm
from lockstep.torch.offline.scorer import PolicyScorer
from lockstep.torch.scoring.policy import ScoringPolicy

NETWORK = ScoreNetworkConfig(hidden=(8, 8))


def run_of(dataset, **changes):
    algo = "dqn" if dataset.info.kind == "discrete" else "parametric_dqn"
    run = OfflineRun(data=str(dataset.path), algo=algo, network=NETWORK)
    return override(run, {"gamma": 0.9, "temperature": 0.5} | changes)


def policy_of(dataset, run, seed=1):
    about = OfflinePolicySpec(
        info=dataset.info,
        state=dataset.state_features,
        action=dataset.action_features,
        network=run.network,
        algo=run.algo,
        algorithm=run.algorithm,
    )
    policy = ScoringPolicy(about, seed=seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(2.0)
    return policy


def judge(dataset, **changes):
    run = run_of(dataset, **changes)
    policy = policy_of(dataset, run)
    with Comm(World(), device="cpu") as comm:
        return estimate(PolicyScorer(policy, run), dataset, comm, run), policy


def outcomes(policy, row):
    """Probabilities of a row's possible actions [k], which one was taken, and R and Q of each [k, C]."""
    state = torch.from_numpy(row.state)
    with torch.no_grad():
        if policy.action is None:
            scores, heads = policy.network(state)[0], (policy.heads.reward(state)[0], policy.heads.value(state)[0])
            kept = np.flatnonzero(row.possible_actions[0])
            taken = int(np.flatnonzero(kept == row.action[0])[0])
        else:
            values = torch.from_numpy(row.possible_actions.values)
            owner = torch.zeros(len(values), dtype=torch.int64)
            scores = policy.network(state, values, owner)
            heads = policy.heads.reward(state, values, owner), policy.heads.value(state, values, owner)
            kept, taken = np.arange(len(values)), int(row.action_index[0])
    scores = scores.double().numpy()[kept]
    config = policy.policy_spec.algorithm
    if config.policy == "greedy":
        pi = np.eye(len(kept))[scores.argmax()]
    else:
        pi = np.exp((scores - scores.max()) / config.temperature)
        pi /= pi.sum()
    return pi, taken, *(head.double().numpy()[kept] for head in heads)


def slow(dataset, policy, gamma, unit=None):
    """Some estimates of every column, by loops."""
    rows, trajectories = [], []
    numbers = dataset.column("trajectory")[:]
    for i in range(len(dataset)):
        row = dataset.rows(np.array([i]))
        pi, taken, reward, q = outcomes(policy, row)
        told = np.concatenate([row.reward, row.metrics[0]]).astype(np.float64)
        rho = pi[taken] / float(row.propensity[0])
        rows.append((told, rho, reward[taken], pi @ reward, q[taken], pi @ q, float(row.time_diff[0])))
    for number in np.unique(numbers):
        weight, elapsed, g, dr, first = 1.0, 0.0, 0.0, 0.0, None
        for i in np.flatnonzero(numbers == number):
            r, rho, _, _, q, v, time = rows[i]
            discount = gamma**elapsed
            first = v if first is None else first
            dr = dr + discount * (weight * v + weight * rho * (r - q))
            g, weight = g + discount * r, weight * rho
            elapsed += 1 if unit is None else time / unit
        trajectories.append((weight * g, dr, first, g))
    mean = [np.mean(x, 0) for x in zip(*trajectories, strict=True)]
    return {
        "decision_direct": np.mean([v for _, _, _, v, *_ in rows], 0),
        "decision_ips": np.mean([rho * r for r, rho, *_ in rows], 0),
        "decision_dr": np.mean([v + rho * (r - m) for r, rho, m, v, *_ in rows], 0),
        "ips": mean[0],
        "sequential_dr": mean[1],
        "fitted_q": mean[2],
    }, mean[3]


CASES = {
    "named, softmax": (made_data.discrete, {"policy": "softmax"}),
    "named, greedy": (made_data.discrete, {}),
    "named, by time": (made_data.discrete, {"policy": "softmax", "use_time_diff": True, "time_diff_unit": 2.0}),
    "candidates, softmax": (made_data.parametric, {"policy": "softmax"}),
    "candidates, greedy": (made_data.parametric, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_against_loops(case, tmp_path, monkeypatch):
    make, changes = CASES[case]
    monkeypatch.setattr(counterfactual, "_BLOCK", 16)
    monkeypatch.setattr(counterfactual, "_READ", 7)
    monkeypatch.setattr(judged, "MAX_ROWS", 5)
    dataset = Dataset.open(make(tmp_path / "data", rows=120, metrics=2, part_rows=50))
    told, policy = judge(dataset, **changes)
    found = told.to_dict()
    expected, logged = slow(dataset, policy, 0.9, 2.0 if "time_diff_unit" in changes else None)
    assert found["num_rows"] == 120
    assert found["num_trajectories"] == dataset.info.num_trajectories
    for c, column in enumerate(("reward", *dataset.info.metrics)):
        assert found["logged"][column]["logged"]["value"] == pytest.approx(logged[c], rel=1e-5)
        for name, values in expected.items():
            if name not in found["left_out"]:
                value = found["estimates"][column][name]["value"]
                assert value == pytest.approx(values[c], rel=1e-4, abs=1e-5), (column, name)
    assert found["policy"]["policy"] == changes.get("policy", "greedy")


@pytest.mark.parametrize("make", [made_data.discrete, made_data.parametric])
def test_blocks_do_not_change_the_estimates(make, tmp_path, monkeypatch):
    dataset = Dataset.open(make(tmp_path / "data", rows=300))
    whole = judge(dataset, policy="softmax")[0].to_dict()
    monkeypatch.setattr(counterfactual, "_BLOCK", 32)
    monkeypatch.setattr(judged, "MAX_ROWS", 9)
    parts = judge(dataset, policy="softmax")[0].to_dict()
    for name, told in whole["estimates"]["reward"].items():
        assert told == pytest.approx(parts["estimates"]["reward"][name], rel=1e-4), name


def test_cut_trajectories_gaps_and_training_rows_cause_warnings(tmp_path):
    columns = made_data.discrete_columns(rows=200)
    inside = np.flatnonzero(columns["continues"])[:3]
    columns["continues"][inside] = 0
    dataset = Dataset.open(made_data.write(tmp_path / "data", columns))
    warnings = "\n".join(judge(dataset, policy="softmax")[0].to_dict()["warnings"])
    last = np.append(np.diff(columns["trajectory"]) > 0, True)
    cut = int((columns["terminal"][last] == 0).sum())
    assert f"{cut} of {dataset.info.num_trajectories} trajectories are cut off before their end" in warnings
    assert "rows are missing from the log after 3 rows" in warnings
    assert "the policy learned from these very rows" in warnings


def test_held_out_rows_cause_no_warning(tmp_path):
    first = Dataset.open(made_data.discrete(tmp_path / "first", rows=200))
    other = Dataset.open(made_data.discrete(tmp_path / "other", rows=200, seed=5))
    run = run_of(first, policy="softmax")
    with Comm(World(), device="cpu") as comm:
        found = estimate(PolicyScorer(policy_of(first, run), run), other, comm, run).to_dict()
    assert not [line for line in found["warnings"] if "learned from" in line]
    assert found["data"] == str(other.path)


def test_missing_propensities_skip_importance_weights(tmp_path):
    columns = made_data.discrete_columns(rows=200)
    columns["propensity"][17] = np.nan
    dataset = Dataset.open(made_data.write(tmp_path / "data", columns))
    found = judge(dataset, policy="softmax")[0].to_dict()
    assert {*found["estimates"]["reward"]} == {"decision_direct", "fitted_q"}
    assert "1 of 200 rows lack a propensity" in found["left_out"]["ips"]


def test_propensities_of_one(tmp_path):
    columns = made_data.discrete_columns(rows=200)
    columns["propensity"][:] = 1.0
    dataset = Dataset.open(made_data.write(tmp_path / "data", columns))
    assert [
        line for line in judge(dataset, policy="softmax")[0].to_dict()["warnings"] if "every propensity is 1" in line
    ]


def test_no_models(tmp_path):
    dataset = Dataset.open(made_data.discrete(tmp_path / "data", rows=200))
    found = judge(dataset, policy="softmax", estimate=False)[0].to_dict()
    assert "ips" in found["estimates"]["reward"]
    assert "magic" not in found["estimates"]["reward"]
    assert "estimate=false" in found["left_out"]["magic"]


def test_candidates_of_which_the_log_has_only_the_logged_one_give_no_estimate(tmp_path):
    columns = made_data.parametric_columns(rows=200, most=1)
    known = Dataset.open(made_data.write(tmp_path / "known", columns))
    assert "ips" in judge(known, estimate=False)[0].to_dict()["estimates"]["reward"]
    unknown = Dataset.open(made_data.write(tmp_path / "unknown", columns, has_possible_actions=False))
    for estimate_models in (False, True):
        told = judge(unknown, estimate=estimate_models)[0]
        found = told.to_dict()
        assert found["estimates"]["reward"] == {}
        assert {*found["left_out"]} == {*DECISION, *TRAJECTORY}
        assert [line for line in found["warnings"] if "possible_actions" in line]
        assert "no estimate of the policy's reward is reliable: the log does not say which actions" in told.line()
    with pytest.raises(ConfigError, match=r"unknown cannot .* \(possible_actions\).*; prepare a log .* --data DIR"):
        check_fits(policy_of(known, run_of(known)).policy_spec, unknown)


def test_actions_missing_from_log_cause_warning(tmp_path):
    columns = made_data.discrete_columns(rows=400)
    kept = columns["action"] < 2
    columns["action"] = np.where(kept, columns["action"], 0).astype(np.int32)
    columns["possible_actions"][:] = 1
    dataset = Dataset.open(made_data.write(tmp_path / "data", columns))
    told, policy = judge(dataset, policy="softmax")
    with torch.no_grad():
        state = torch.from_numpy(columns["state"])
        share = policy.probability(policy.network(state), torch.ones(400, 3))[:, 2].double().mean().item()
    assert [x for x in told.to_dict()["warnings"] if x.startswith(f"{share:.0%} of what the policy does")]


def test_data_that_do_not_fit_policy_are_rejected(tmp_path):
    mine = Dataset.open(made_data.discrete(tmp_path / "mine", rows=50))
    about = policy_of(mine, run_of(mine)).policy_spec
    check_fits(about, mine)
    for name, other in (
        ("state_features", made_data.discrete(tmp_path / "states", rows=50, state_size=5)),
        ("actions", made_data.discrete(tmp_path / "actions", rows=50, actions=4)),
        ("metrics", made_data.discrete(tmp_path / "metrics", rows=50, metrics=3)),
    ):
        with pytest.raises(ConfigError, match=f"differs in {name} .*--like"):
            check_fits(about, Dataset.open(other))
    with pytest.raises(
        ConfigError, match="kind is of another task than the policy: its actions are numbers or features"
    ):
        check_fits(about, Dataset.open(made_data.parametric(tmp_path / "kind", rows=50)))
    renamed = replace(mine.info, state_features=tuple(f"speed_{name}" for name in mine.info.state_features))
    with pytest.raises(ConfigError, match=r"its state features are 0, 1, .*, and the policy learned from speed_0, "):
        check_fits(replace(about, info=renamed), mine)
    noted = Features({name: replace(feature, note="by hand") for name, feature in about.state.items()})
    check_fits(replace(about, state=noted), mine)
    path, shapes = tmp_path / "policy", {"layer": (2, 3)}
    check_start(path, replace(about, state=noted).signature(shapes), about.signature(shapes))
    moved = replace(about, state=made_data.as_it_is(str(i) for i in range(5)))
    with pytest.raises(ConfigError, match="normalized differently"):
        check_fits(moved, mine)
    with pytest.raises(ConfigError, match="differs from this run's in state features"):
        check_start(path, moved.signature(shapes), about.signature(shapes))
    others = replace(about, info=replace(mine.info, actions=("left", "right")))
    with pytest.raises(ConfigError, match="differs from this run's in actions; use"):
        check_start(path, others.signature(shapes), about.signature(shapes))


def test_heartbeat_is_called_after_each_block(tmp_path, monkeypatch):
    monkeypatch.setattr(counterfactual, "_BLOCK", 32)
    dataset, beats = Dataset.open(made_data.discrete(tmp_path / "data", rows=300)), []
    run = run_of(dataset)
    with Comm(World(), device="cpu") as comm:
        estimate(PolicyScorer(policy_of(dataset, run), run), dataset, comm, run, heartbeat=lambda: beats.append(1))
    assert len(beats) >= 9
