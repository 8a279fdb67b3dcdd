"""Estimates at the end of a run are of the finished policy, whatever ended it."""

import json

import pytest

import made_data
from lockstep import World
from lockstep.run import OfflineRun, ScoreNetworkConfig, load, override
from lockstep.session.policy_file import read
from lockstep.session.resume import prepare
from lockstep.torch.offline.evaluate import evaluate_run
from lockstep.train import train

ROWS, BATCH = 200, 50


@pytest.fixture
def run(here):
    """A run that estimates at step 200 and, solved by its first evaluation, ends at step 250."""
    columns = made_data.discrete_columns(ROWS, actions=2, metrics=0)
    data = made_data.write(here / "data", columns, actions=("0", "1"))
    changes = {
        "batch_size": BATCH,
        "estimate_every": 1,
        "evaluate_every": ROWS + BATCH,
        "evaluate_episodes": 2,
        "stop_return": 1,
        "device": "cpu",
    }
    network = ScoreNetworkConfig(hidden=(8,))
    return override(OfflineRun(data=str(data), task="CartPole-v1", epochs=4, network=network), changes)


def is_of_final_policy(path, summary):
    """Whether `summary.json` and `estimates.json` have the estimates of the policy that the run left."""
    run = load(path / "run.yaml")
    policy = path / "policy.safetensors"
    whole = evaluate_run(run, policy, *read(policy), run.data, World()).to_dict()
    written = json.loads((path / "estimates.json").read_text())
    return summary["estimates"] == whole and written == {"step": ROWS + BATCH, **json.loads(json.dumps(whole))}


def test_a_run_that_is_solved_between_two_estimates_is_estimated_at_its_end(run, here):
    summary = train(run, run_dir=here / "run")
    assert (summary["status"], summary["env_steps"]) == ("solved", ROWS + BATCH)
    assert is_of_final_policy(here / "run", summary)


def test_a_resumed_run_without_anything_left_to_learn_is_estimated_at_its_end(run, here):
    train(run, run_dir=here / "run")
    (here / "run" / "summary.json").unlink()  # as if it had been killed before the end
    (here / "run" / "estimates.json").write_text("{}")
    summary = train(prepare(here / "run", {}).run, resume=here / "run")
    assert (summary["status"], summary["env_steps"]) == ("solved", ROWS + BATCH)
    assert is_of_final_policy(here / "run", summary)


def lines_of(path):
    """The lines of metrics, without what clocks and memory say."""
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("time")} for line in lines]


def test_every_estimate_has_a_line_of_metrics_also_after_a_resumption(run, here):
    run = override(run, {"stop_return": None, "evaluate_every": None})
    assert run.log_every is not None and run.log_every > 4 * ROWS
    train(run, run_dir=here / "run")
    lines = lines_of(here / "run")
    assert [line["step"] for line in lines] == [ROWS, 2 * ROWS, 3 * ROWS, 4 * ROWS]
    assert len({line["estimate/fitted_q"] for line in lines}) == 4, "each line has an estimate of its own"
    train(override(run, {"epochs": 2}), run_dir=here / "resumed")
    train(prepare(here / "resumed", {"epochs": 4}).run, resume=here / "resumed")
    assert lines_of(here / "resumed") == lines


def test_a_run_that_ends_with_an_estimate_is_not_estimated_twice(run, here, monkeypatch):
    from lockstep.session.offline import session

    steps, estimate = [], session.estimate
    monkeypatch.setattr(session, "estimate", lambda *args, **options: steps.append(1) or estimate(*args, **options))
    train(override(run, {"stop_return": None, "estimate_every": 2}), run_dir=here / "run")
    assert len(steps) == 2, "at steps 400 and 800"
