"""A run that learns from a replay, cut short and resumed, on any number of ranks: as if it had never stopped."""

import json
import shutil
from pathlib import Path

import pytest
from running import job, lines, small_dqn, timeless, train_all

from quick import others_slow

TASKS = {"CartPole-v1": {}, "image_envs:Dot": {"encoder": "small", "features": 16, "capacity": 384}}
HOW = {
    "replay": {},
    "noisy": {"noisy": True, "value_distribution": "quantile", "num_quantiles": 5},
    "soft": {"target_rate": 0.05, "prioritized": False, "learning_rate_schedule": "linear"},
}
KINDS = [("CartPole-v1", "replay")]
MORE = [("image_envs:Dot", "replay"), ("CartPole-v1", "noisy"), ("CartPole-v1", "soft")]


def pinned(task, how="replay", **changes):
    every = {"checkpoint_every": 160, "evaluate_every": 320, "log_every": 96, "num_shards": 4}
    return small_dqn(task, **{**every, **TASKS[task], **HOW[how], **changes})


@pytest.fixture(scope="module", params=[KINDS, pytest.param(MORE, marks=pytest.mark.slow)], ids=["some", "more"])
def cut(request, tmp_path_factory):
    """Of each kind a run that never stopped and one that raised after 20 of 30 rollouts, both on 2 ranks."""
    folder, jobs = tmp_path_factory.mktemp("resume"), {}
    for task, how in request.param:
        name = f"{task.rpartition(':')[2]}-{how}"
        jobs[task, how, "whole"] = job(pinned(task, how), folder, f"{name}-whole")
        jobs[task, how, "cut"] = job(pinned(task, how), folder, f"{name}-cut", fails_at=20)
    told = train_all(2, jobs)
    for key, outcomes in told.items():
        expected = "the test ends this run" if key[2] == "cut" else ""
        assert all((expected in one.error) if expected else not one.error for one in outcomes), (key, outcomes[0].error)
    return {kind: (Path(jobs[*kind, "whole"].folder), Path(jobs[*kind, "cut"].folder)) for kind in request.param}


@pytest.mark.parametrize("ranks", others_slow([1, 3, 4], 1))
def test_resumed_on_any_number_of_ranks_it_ends_as_if_never_stopped(cut, ranks, tmp_path):
    jobs = {}
    for kind, (_, folder) in cut.items():
        copy = shutil.copytree(folder, tmp_path / folder.name)
        jobs[kind] = job(pinned(*kind), tmp_path, "unused", resume=str(copy))
    told = train_all(ranks, jobs)
    for kind, (whole, _) in cut.items():
        expected = json.loads((whole / "summary.json").read_text())
        summary, resumed = told[kind][0].summary, jobs[kind].resume
        assert told[kind][0].error == "", kind
        assert summary["resumed_from"] is not None  # which one depends on the disk; nothing below does
        assert summary["params_fingerprint"] == expected["params_fingerprint"], f"{kind}: other parameters"
        for key in ("env_steps", "updates", "episodes", "return_mean_100", "eval_return_mean", "status"):
            assert summary[key] == expected[key], (kind, key)
        assert timeless(resumed) == timeless(whole), f"{kind}: other metrics"
        assert lines(resumed, "evaluations.jsonl") == lines(whole, "evaluations.jsonl")


@pytest.mark.slow
def test_without_the_replay_in_its_checkpoint_it_fills_a_new_one_before_it_learns_on(tmp_path):
    run = pinned("CartPole-v1", checkpoint_replay=False, log_every=32)
    train_all(2, {"cut": job(run, tmp_path, "cut", fails_at=20)})
    folder = tmp_path / "cut"
    told = train_all(2, {"end": job(run, tmp_path, "unused", resume=str(folder))})["end"]
    assert [one.error for one in told] == ["", ""]
    begun = int(told[0].summary["resumed_from"].rpartition("_")[2])
    sizes = {line["step"]: line["replay/size"] for line in lines(str(folder))}
    # Which checkpoint is the last depends on the disk.
    assert sizes[begun] > 64 and sizes[begun + 32] <= 32, f"the replay buffer was not emptied: {sizes}"
    learned = [line["step"] for line in lines(str(folder)) if "loss/value" in line and line["step"] > begun]
    assert begun + 160 <= learned[0] <= begun + 192, f"learning began at {learned[0]}, after {begun}"
    assert told[0].summary["status"] == "finished"
    fingerprints = {rank["params_fingerprint"] for rank in told[0].summary["ranks"]}
    assert len(fingerprints) == 1


@pytest.mark.slow
@pytest.mark.parametrize("cut", [KINDS], indirect=True, ids=["some"])
def test_a_mapped_replay_is_resumed_as_any_other(cut, tmp_path):
    changes = {"replay_path": str(tmp_path / "replay")}
    run = pinned("CartPole-v1", **changes)
    train_all(2, {"cut": job(run, tmp_path, "cut", fails_at=20)})
    told = train_all(1, {"end": job(run, tmp_path, "unused", resume=str(tmp_path / "cut"))})["end"]
    assert told[0].error == ""
    whole, _ = cut["CartPole-v1", "replay"]
    assert (
        told[0].summary["params_fingerprint"] == json.loads((whole / "summary.json").read_text())["params_fingerprint"]
    )
