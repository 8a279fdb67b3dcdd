"""The seams of data-parallel learning from logged data: each test fails when its seam is cut."""

import re
from importlib import import_module

import numpy as np
import pytest
from offline_runs import BATCH, ROWS, small_offline
from offline_seams import KINDS, LEARNERS, PADDING, after_step, index_of, learner, run_seams
from running import lines
from seam_world import same

from lockstep import World, spawn
from lockstep.launch.rank_environment import free_port
from lockstep.record.progress import Progress
from offline_policies import part

SEAM_OF = {
    **dict.fromkeys(("counters", "files", "shuffles", "metrics"), "whole_run"),
    **dict.fromkeys(("gradient", "extra_sums"), "gradients"),
}
"""The function in `offline_seams.py`, where it is not named as the test."""


@pytest.fixture(scope="module")
def seam(request, tmp_path_factory):
    """The results of both ranks for each seam that a selected test needs."""
    return seen_by_ranks(request, tmp_path_factory, "torch")


def seen_by_ranks(request, tmp_path_factory, backend):
    """What both ranks saw of each seam that a selected test of the module needs, by its name."""
    items = [item for item in request.session.items if item.module is request.module]
    selected = {item.originalname.removeprefix("test_") for item in items}
    names = {SEAM_OF.get(name, name) for name in selected}
    folder = tmp_path_factory.mktemp("offline_seams")
    small_offline(folder / "named")
    small_offline(folder / "candidates", algo="parametric_dqn")
    small_offline(folder / "continuous", algo="iql")
    ports = {name: free_port() for name in sorted(names)}
    results = spawn(run_seams, 2, (backend, ports, str(folder)), timeout_s=300)
    found = {name: [rank[name] for rank in results] for name in results[0]}
    return found | {"folder": folder, "backend": import_module(f"{backend}_offline")}


@pytest.mark.parametrize("kind", KINDS)
def test_start_equal(seam, kind):
    first, second = (rank[kind] for rank in seam["start_equal"])
    assert same(first["policy"], second["policy"]), "ranks start from different parameters"
    for rank in (first, second):
        root = "network.critics." if kind == "continuous" else "network."
        network = {name.removeprefix(root): p for name, p in rank["policy"].items() if name.startswith(root)}
        assert same(rank["target"], network), "the target network does not start as the policy"
    assert same(first["shared"], second["shared"])
    assert {"optimizer.moment", "optimizer.square", "learning_rate"} <= first["shared"].keys()
    values = np.concatenate([p.ravel() for p in first["target"].values()])
    assert np.array_equal(first["compared"], values), "targets are not compared between ranks"


@pytest.mark.parametrize("kind", KINDS)
def test_initialized_from(seam, kind):
    ranks = [rank[kind] for rank in seam["initialized_from"]]
    assert [rank["error"] for rank in ranks] == ["", ""], "ranks went on from different policies"
    assert not same(ranks[0]["given"], ranks[1]["given"])
    for rank in ranks:
        given = ranks[0]["given"]
        if kind == "continuous":
            given = {name.removeprefix("critics."): p for name, p in given.items() if name.startswith("critics.")}
        assert same(rank["target"], given), "the target network does not go on from the file of rank 0"


@pytest.mark.parametrize("name", LEARNERS)
def test_gradient(seam, name):
    """Equal to that of both parts together in one process: rows weigh 1, wherever they are, and padding 0.

    CQL draws random numbers for each shard, so that its parts stay two shards of the one process.
    """
    backend, folder = seam["backend"], str(seam["folder"] / "gradients" / "run")
    world = World().with_shards(2) if name == "cql" else World()
    with learner(backend, world, folder, name) as (dataset, one):
        index = np.concatenate([index_of(rank)[: 16 - PADDING[rank]] for rank in (0, 1)])
        if name == "cql":
            parts = [part(dataset, index_of(rank), PADDING[rank]) for rank in (0, 1)]
        else:
            parts = [part(dataset, index)]
        one.update(parts, np.zeros((len(parts), 0)), Progress(1000))
        expected = after_step(backend, one)
    for rank in seam["gradients"]:
        found = rank[name]
        near = np.allclose(found["gradient"], expected["gradient"], rtol=0, atol=2e-6)
        assert near, "not the gradient of the global batch"
        assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-4), "not means over all rows"
        assert same(found["shared"], seam["gradients"][0][name]["shared"])
    assert len(index) == 21 and expected["metrics"]["optim/grad_norm"] > 0.1
    if "clipped" in name:
        assert np.linalg.norm(expected["gradient"][: backend.num_scores(one)]) == pytest.approx(0.1, rel=1e-4)


def test_extra_sums(seam):
    for rank in seam["gradients"]:
        assert all(found["extra"] == [2.0, 3.0] for found in rank.values())


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_bad(seam, kind):
    ranks = seam["one_rank_bad"]
    assert not any(isinstance(rank, str) for rank in ranks), f"a rank decided alone: {ranks}"
    for rank in ranks:
        skipped, stopped = rank[kind, "skip"], rank[kind, "stop"]
        assert (skipped["error"], skipped["steps"]) == ("", 3), "a rank gave up a step alone"
        assert skipped["metrics"]["optim/skipped"] == pytest.approx(1 / 3), "a rank left out a step alone"
        row = index_of(3)[4]
        assert f"row {row} of the data is not finite, in update 2" in stopped["error"], "a rank does not know of it"
        assert "rank 1, shard 1" in stopped["error"]
        assert stopped["steps"] == 1
    for mode in ("skip", "stop"):
        assert same(ranks[0][kind, mode]["shared"], ranks[1][kind, mode]["shared"]), "ranks went apart"


def test_counters(seam):
    ranks = seam["whole_run"]
    assert [rank["error"] for rank in ranks] == ["", ""]
    for rank in ranks:
        assert rank["summary"]["env_steps"] == 2 * ROWS, "rows are not counted globally, each once in an epoch"
        assert rank["summary"]["updates"] == 2 * -(-ROWS // BATCH)
    steps = [line["step"] for line in lines(ranks[0]["folder"])]
    assert steps == [128, 224, 310, 406, 502, 620], "rows that only fill up are counted, or a rank's own"


def test_shuffles(seam):
    ranks = seam["whole_run"]
    batches = -(-ROWS // BATCH)
    orders = []
    for epoch in range(2):
        steps = range(epoch * batches, (epoch + 1) * batches)
        parts = [[rank["learned"][step] for step in steps] for rank in ranks]
        every = np.concatenate([np.concatenate(part) for part in parts])
        assert np.array_equal(np.sort(every), np.arange(ROWS)), "not every row exactly once"
        orders.append([np.concatenate(part).tolist() for part in parts])
    assert orders[0] != orders[1], "every epoch has the same order"
    assert orders[0][0] != sorted(orders[0][0]), "rows are not shuffled"
    counts = [[len(rank["learned"][step]) for rank in ranks] for step in range(batches - 1)]
    assert counts == [[BATCH // 2] * 2] * (batches - 1), "ranks do not share a batch evenly"


def test_metrics(seam):
    ranks = seam["whole_run"]
    logs = lines(ranks[0]["folder"])
    for log in logs:
        assert {
            "loss/value",
            "loss/reward",
            "loss/policy_value",
            "value/q",
            "value/target",
            "optim/grad_norm",
        } <= log.keys()
        assert log["optim/skipped"] == 0
    epochs = [log["data/epoch"] for log in logs]
    assert epochs == sorted(epochs) and 0 < epochs[0] < 1 < epochs[-1] < 2


def test_files(seam):
    first, second = seam["whole_run"]
    own = re.compile(r"/(logs(/rank_1\.(log|stack))?|checkpoints(/\.step_\d+(/shard_1\.\w+)?)?)$")
    assert [line for line in second["touched"] if not own.search(line)] == [], "rank 1 writes what rank 0 writes"
    assert any("/shard_1" in line for line in second["touched"]), "no checkpoint was written; nothing is proved"
    assert not any("/shard_1" in line for line in first["touched"]), "rank 0 writes what rank 1 writes"
