"""Parametric DQN on several ranks: the same bits, resumed as if never stopped, and no seam cut.

1 == 2 == 4 ranks after 200 gradient steps. What does not depend on the kind of actions is in `test_offline_seams.py`.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from logged_runs import BATCH, EPOCHS, ROWS, LoggedJob, small_offline, train_logged
from offline_seams import PADDING, index_of, taken
from parametric_seams import GRADIENTS, learner, run_seams
from running import timeless

from lockstep import World, spawn
from lockstep.launch.variables import free_port
from lockstep.record.progress import Progress
from logged_policies import part

WORLDS = (1, 2, 4)
STEPS = EPOCHS * -(-ROWS // BATCH)
RUNS = {
    "max": {"dueling": True, "cql_alpha": 0.3, "max_grad_norm": 1.0},
    "sarsa": {"maxq": False, "n_step": 3, "policy": "softmax", "loss": "huber"},
}


def run_of(folder, name, **changes):
    return small_offline(folder / "data", algo="parametric_dqn", **{"num_shards": 4, **RUNS[name], **changes})


@pytest.fixture(scope="module", params=["max", pytest.param("sarsa", marks=pytest.mark.slow)])
def trained(request, tmp_path_factory):
    """A run on every number of ranks, and "cut": on 2 ranks one that raises in the middle of its eighth epoch."""
    folder, found = tmp_path_factory.mktemp("parametric"), {}
    run = run_of(folder, request.param, checkpoint_every=350)
    for ranks in WORLDS:
        jobs = {ranks: LoggedJob(run, str(folder / f"on-{ranks}"))}
        if ranks == 2:
            jobs["cut"] = LoggedJob(run, str(folder / "cut"), fails_at=74)
        told = train_logged(ranks, jobs)
        found |= {name: (jobs[name], told[name]) for name in jobs}
    return found


def test_any_number_of_ranks_gives_the_same_bits(trained):
    outcomes = [outcome for ranks in WORLDS for outcome in trained[ranks][1]]
    assert [one.error for one in outcomes] == [""] * sum(WORLDS)
    assert all(one.moved for one in outcomes)
    fingerprints = {rank["params_fingerprint"] for one in outcomes for rank in one.summary["ranks"]}
    assert len(fingerprints) == 1, "parameters depend on the number of ranks"
    logs = [timeless(trained[ranks][0].folder) for ranks in WORLDS]
    assert len(logs[0]) >= 5
    assert all(log == logs[0] for log in logs), "metrics depend on the number of ranks"


def test_a_gradient_step_sends_one_message(trained):
    for outcome in trained[2][1]:
        many = {tag: count for tag, count in outcome.messages.items() if count >= STEPS / 2}  # others: checkpoints
        assert many == {"average_gradients": STEPS}


@pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_resumed_in_the_middle_of_an_epoch_it_ends_as_if_never_stopped(trained, ranks, tmp_path):
    broken, outcomes = trained["cut"]
    assert all("the test ends this run" in one.error for one in outcomes)
    copy = str(shutil.copytree(broken.folder, tmp_path / "cut"))
    outcome = train_logged(ranks, {"end": LoggedJob(broken.run, "unused", resume=copy)})["end"][0]
    whole = trained[2][0].folder
    expected = json.loads((Path(whole) / "summary.json").read_text())
    assert outcome.error == ""
    assert int(outcome.summary["resumed_from"].rpartition("_")[2]) % ROWS, "resumed between two epochs"
    assert len(outcome.learned) < STEPS
    assert outcome.summary["params_fingerprint"] == expected["params_fingerprint"], "other parameters"
    assert timeless(copy) == timeless(whole), "other metrics"


@pytest.fixture(scope="module")
def seam(request, tmp_path_factory):
    """What both ranks saw of each seam that a selected test asks for."""
    items = [item for item in request.session.items if item.module is request.module]
    selected = {item.originalname.removeprefix("test_") for item in items}
    names = selected & {"start_equal", "gradients", "one_rank_bad", "initialized_from"}
    folder = tmp_path_factory.mktemp("parametric_seams")
    small_offline(folder / "data", algo="parametric_dqn")
    told = spawn(run_seams, 2, ({name: free_port() for name in sorted(names)}, str(folder)), timeout_s=300)
    return {name: [rank[name] for rank in told] for name in told[0]} | {"folder": folder}


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_start_equal(seam):
    first, second = seam["start_equal"]
    assert same(first["policy"], second["policy"]), "ranks start from different parameters"
    assert same(first["shared"], second["shared"])
    assert {"target", "optimizer.moment", "optimizer.square", "learning_rate"} <= first["shared"].keys()
    values = np.concatenate([p.ravel() for p in first["target"].values()])
    assert np.array_equal(first["shared"]["target"][: len(values)], values), "targets are not compared between ranks"
    mine = np.concatenate([p.ravel() for name, p in first["policy"].items() if name.startswith("network.")])
    assert np.array_equal(values, mine), "the target network does not start as the policy"


def test_initialized_from(seam):
    ranks = seam["initialized_from"]
    assert [rank["error"] for rank in ranks] == ["", ""], "ranks went on from different policies"
    assert not same(ranks[0]["given"], ranks[1]["given"])
    for rank in ranks:
        assert same(rank["target"], ranks[0]["given"]), "the target network does not go on from the file of rank 0"


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(seam, name):
    """That of both parts together, in one process: each row weighs 1, wherever it is, and what fills up 0."""
    with learner(World(), str(seam["folder"] / "gradients" / "run"), GRADIENTS[name]) as (dataset, one):
        index = np.concatenate([index_of(rank)[: 16 - PADDING[rank]] for rank in (0, 1)])
        one.update([part(dataset, index)], np.zeros((1, 0)), Progress(1000))
        expected = taken(one)
    for rank in seam["gradients"]:
        found = rank[name]
        assert found["told"] == [2.0, 3.0]
        near = np.allclose(found["gradient"], expected["gradient"], rtol=0, atol=2e-6)
        assert near, "not the gradient of the global batch"
        assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-4), "not means over all rows"
        assert same(found["shared"], seam["gradients"][0][name]["shared"])
    assert expected["metrics"]["optim/grad_norm"] > 0.1
    if name == "clipped":
        scores = sum(p.numel() for p in one.scores.parameters())
        assert np.linalg.norm(expected["gradient"][:scores]) == pytest.approx(0.1, rel=1e-4)


def test_one_rank_bad(seam):
    ranks = seam["one_rank_bad"]
    for rank in ranks:
        skipped, stopped = rank["skip"], rank["stop"]
        assert (skipped["error"], skipped["steps"]) == ("", 3), "a rank gave up a step alone"
        assert skipped["metrics"]["optim/skipped"] == pytest.approx(1 / 3), "a rank left out a step alone"
        assert f"row {index_of(3)[4]} of the data is not finite, in update 2" in stopped["error"]
        assert "rank 1, shard 1" in stopped["error"] and stopped["steps"] == 1
    for how in ("skip", "stop"):
        assert same(ranks[0][how]["shared"], ranks[1][how]["shared"]), "ranks went apart"
