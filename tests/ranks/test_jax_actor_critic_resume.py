"""SAC and TD3 in JAX: a run that was cut short and resumed on another layout has the bits of an undisturbed one."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("jax")

from jax_running import train_all
from running import job, lines, small_actor_critic, timeless

pytestmark = pytest.mark.slow  # whole runs on several layouts

HOW = {
    "sac": {"algo": "sac", "dropout": 0.1, "num_critics": 3, "target_critics": 2},
    "td3": {"algo": "td3", "policy_delay": 3, "learning_rate_schedule": "linear"},
}


def pinned(name):
    every = {"checkpoint_every": 160, "evaluate_every": 320, "log_every": 96, "num_shards": 4}
    return small_actor_critic(**{**every, **HOW[name]})


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """Of each algorithm a run that never stopped and one that raised after 14 of 20 rollouts, both on 2 devices."""
    folder, jobs = tmp_path_factory.mktemp("resume"), {}
    for name in HOW:
        jobs[name, "whole"] = job(pinned(name), folder, f"{name}-whole")
        jobs[name, "cut"] = job(pinned(name), folder, f"{name}-cut", fails_at=14)
    for key, ranks in train_all(1, jobs, devices=2).items():
        expected = "the test ends this run" if key[1] == "cut" else ""
        assert all((expected in one.error) if expected else not one.error for one in ranks), (key, ranks[0].error)
    return {name: (Path(jobs[name, "whole"].folder), Path(jobs[name, "cut"].folder)) for name in HOW}


@pytest.mark.parametrize("processes", [1, 2])
def test_resumed_run_ends_as_undisturbed(cut, processes, tmp_path):
    jobs = {}
    for name, (_, folder) in cut.items():
        copy = shutil.copytree(folder, tmp_path / folder.name)
        jobs[name] = job(pinned(name), tmp_path, "unused", resume=str(copy))
    outcomes = train_all(processes, jobs)
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
