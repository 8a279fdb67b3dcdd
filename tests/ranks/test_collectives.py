"""The collectives among real processes: sums, mistakes, death. What a world of one does is in tests/unit/torch."""

from pathlib import Path

import collectives
import numpy as np
import pytest

from lockstep import RunError, spawn
from lockstep.launch.variables import free_port

WAYS = ("memory", "messages", "plain")


def ports(*names):
    return {name: free_port() for name in names}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("collectives")


@pytest.fixture(scope="module")
def told(folder):
    """What both ranks said of everything that leaves them alive."""
    calls = [
        ("all_collectives", (ports(*WAYS),)),
        ("flat_gradients", (free_port(),)),
        ("differ", (ports(*WAYS),)),
        ("objects_differ", (free_port(),)),
        ("unequal", (free_port(),)),
        ("comm_dies_with_an_error", ([free_port(), free_port()],)),
        ("one_gpu", (free_port(),)),
        ("start_unequal", (free_port(), str(folder / "run"))),
    ]
    ranks = spawn(collectives.one_after_another, 2, (calls,), timeout_s=240)
    return {name: [rank[name] for rank in ranks] for name, _ in calls}


@pytest.mark.parametrize("way", WAYS)
def test_collectives(told, way):
    first, second = (rank[way] for rank in told["all_collectives"])
    assert repr(first) == repr(second), "ranks were told different things"
    shards = range(2) if way == "plain" else range(5)
    assert first["sum_shards"] == pytest.approx([sum(10.0**s for s in shards), sum(s / 3 for s in shards)])
    assert first["sum"] == [3.0, 4.0]
    assert first["mean"] == [1.5, 2.0]
    assert first["weighted"] == [(1 + 3 * 2) / 4, 2.0]
    assert first["not weighed"] == [1.0, 2.0], "a rank of weight 0 has a say"
    assert first["max"] == [2.0, 2.0]
    assert first["any"] == [True, False]
    rows = np.concatenate([np.arange(6.0).reshape(3, 2)[[0, 2, 2]] * k for k in (1, 2)])
    assert first["moments"] == [6.0, pytest.approx(rows.mean(0)), pytest.approx(rows.var(0), rel=1e-6)]
    assert [g["rank"] for g in first["gather"]] == [0, 1]
    assert [g["array"].tolist() for g in first["gather"]] == [[], [0]]
    assert first["broadcast"] == [1, "é"]
    assert first["gradient"] == [pytest.approx([4 / 5, 4 / 5])], "the mean gradient does not weigh ranks"
    assert first["weight"] == [5.0]
    assert first["large"] == 600_000
    assert first["double"] == [2e-17, 2.0], "float64 was narrowed on the way"


def test_gradients_of_shards_count_by_their_weight(told):
    expected = np.array([[s * (s + 1.0)] * 3 + [s + 1.0] for s in range(4)]).sum(0) / 10
    for rank in told["flat_gradients"]:
        assert np.allclose(rank["gradient"], expected)
        assert rank["sums"] == [10.0, 6.0]
        assert rank["messages"]["average_gradients"] == 1


def test_ranks_in_different_collectives_of_equal_size_are_told_apart(told):
    said = told["differ"]
    for rank, other in ((0, 1), (1, 0)):
        mine = ("average_gradients", "log")[rank]
        assert said[rank]["memory"].startswith("RunError: ranks are in different collectives"), said[rank]["memory"]
        assert f"rank {rank} is in {mine}" in said[rank]["memory"]
        assert f"rank {other} is in {('average_gradients', 'log')[other]}" in said[rank]["memory"]
        assert said[rank]["messages"].startswith("RunError: ranks are in different collectives"), said[rank]["messages"]
        assert f"rank {rank} is in {mine}" in said[rank]["messages"]
        assert f"rank {other} in another" in said[rank]["messages"]
    assert any("ranks are in different collectives" in rank["plain"] for rank in said)


def test_objects_of_different_collectives_are_told_apart(told):
    assert all("ranks are in different collectives" in rank for rank in told["objects_differ"]), told["objects_differ"]


def test_unequal_tensors_are_named_with_their_rank(told):
    for said in told["unequal"]:
        assert said[0].startswith("RunError: ranks no longer hold the same policy.weight: rank 1 differs"), said
        assert said[1].startswith("RunError: ranks no longer hold the same optimizer.exp_avg: rank 1 differs"), said


@pytest.mark.parametrize("way", ["memory", "messages"])
def test_a_dead_peer_is_noticed_within_two_seconds(tmp_path, way):
    with pytest.raises(RunError, match=r"rank 1 was killed by SIGKILL"):
        spawn(collectives.peer_dies, 2, (free_port(), str(tmp_path), way), timeout_s=60)
    noticed, number, said = Path(tmp_path, "told").read_text().split("\n", 2)
    assert float(noticed) - float(Path(tmp_path, "died_at").read_text()) < 2.0, "noticed too late"
    assert said.startswith("PeerError:")
    assert "average_gradients" in said
    if way == "memory":
        assert (number, said.split(" while")[0]) == ("1", "PeerError: rank 1 has ended")


@pytest.mark.parametrize("way", ["memory", "messages"])
def test_a_stalled_peer_is_given_up_at_the_timeout(way):
    (seconds, said), _ = spawn(collectives.peer_stalls, 2, (free_port(), way), timeout_s=60)
    assert 0.9 < seconds < 3.0, said
    assert said.startswith("PeerError:")
    assert "average_gradients" in said
    assert "timeout_s=1" in said
    if way == "memory":
        assert "rank 1 did not come" in said


def test_the_group_is_destroyed_after_an_error_and_at_the_end(told):
    assert told["comm_dies_with_an_error"] == [[False, True, False]] * 2


def test_too_many_processes_for_the_gpus_is_refused_by_every_rank(told):
    for said in told["one_gpu"]:
        assert said.startswith("ConfigError: 2 processes")
        assert "--nproc_per_node=1" in said


def test_ranks_with_different_configs_are_refused_before_anything_is_written(told, folder):
    for said in told["start_unequal"]:
        assert said.startswith("ConfigError: rank 1 was started with another config than rank 0")
    assert not (folder / "run").exists()
