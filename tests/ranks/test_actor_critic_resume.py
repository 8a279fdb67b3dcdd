"""SAC and TD3: a run that was cut short and resumed ends with the bits of an undisturbed one."""

import json
import shutil
from pathlib import Path

import pytest
from running import job, lines, small_actor_critic, timeless, train_all

from lockstep.run import override
from quick import others_slow

HOW = {
    "sac": {"algo": "sac", "dropout": 0.1, "target_critics": 1},
    "td3": {"algo": "td3", "policy_delay": 3, "learning_rate_schedule": "linear"},
    "short checkpoint": {"algo": "sac", "checkpoint_replay": False},
}


def pinned(name):
    every = {"checkpoint_every": 160, "evaluate_every": 320, "log_every": 96, "num_shards": 4}
    return small_actor_critic(**{**every, **HOW[name]})


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """Of each algorithm a run that never stopped and one that raised after 14 of 20 rollouts, both on 2 ranks."""
    folder, jobs = tmp_path_factory.mktemp("resume"), {}
    for name in ("sac", "td3"):
        jobs[name, "whole"] = job(pinned(name), folder, f"{name}-whole")
        jobs[name, "cut"] = job(pinned(name), folder, f"{name}-cut", fails_at=14)
    outcomes = train_all(2, jobs)
    for key, ranks in outcomes.items():
        expected = "the test ends this run" if key[1] == "cut" else ""
        assert all((expected in one.error) if expected else not one.error for one in ranks), (key, ranks[0].error)
    return {name: (Path(jobs[name, "whole"].folder), Path(jobs[name, "cut"].folder)) for name in ("sac", "td3")}


@pytest.mark.parametrize("ranks", others_slow([1, 4], 1))
def test_resumed_run_ends_as_undisturbed(cut, ranks, tmp_path):
    jobs = {}
    for name, (_, folder) in cut.items():
        copy = shutil.copytree(folder, tmp_path / folder.name)
        jobs[name] = job(pinned(name), tmp_path, "unused", resume=str(copy))
    outcomes = train_all(ranks, jobs)
    for name, (whole, _) in cut.items():
        expected = json.loads((whole / "summary.json").read_text())
        summary, resumed = outcomes[name][0].summary, jobs[name].resume
        assert outcomes[name][0].error == "", name
        assert summary["resumed_from"] is not None
        assert summary["params_fingerprint"] == expected["params_fingerprint"], f"{name}: other parameters"
        for key in ("env_steps", "updates", "episodes", "return_mean_100", "eval_return_mean", "status"):
            assert summary[key] == expected[key], (name, key)
        assert timeless(resumed) == timeless(whole), f"{name}: other metrics"
        assert lines(resumed, "evaluations.jsonl") == lines(whole, "evaluations.jsonl")


@pytest.mark.slow
def test_without_replay_in_checkpoint_a_new_one_is_filled_first(tmp_path):
    run = override(pinned("short checkpoint"), {"log_every": 32})
    train_all(2, {"cut": job(run, tmp_path, "cut", fails_at=14)})
    folder = tmp_path / "cut"
    outcomes = train_all(2, {"end": job(run, tmp_path, "unused", resume=str(folder))})["end"]
    assert [one.error for one in outcomes] == ["", ""]
    assert outcomes[0].summary["status"] == "finished"
    start = int(outcomes[0].summary["resumed_from"].rpartition("_")[2])
    learned = [line["step"] for line in lines(str(folder)) if "loss/value" in line and line["step"] > start]
    assert learned[0] >= start + 160, "learning began before the new replay was filled"
