"""`examples/my_off_policy_loop.py`: it learns, each rank from data of its own, and all of them the same."""

import argparse
import socket

import my_off_policy_loop
import pytest

from lockstep import World, spawn

STEPS = 5_000  # some 500 gradient steps
SHORT = 1_600


def args(total_steps=STEPS, num_shards=2):
    return argparse.Namespace(ranks=2, num_shards=num_shards, total_steps=total_steps, device="cpu")


@pytest.fixture(scope="module")
def two():
    """What two ranks did in a short run."""
    return spawn(my_off_policy_loop.spawned, 2, (args(SHORT),), timeout_s=300)[0]


@pytest.mark.slow
def test_it_learns():
    ranks = spawn(my_off_policy_loop.spawned, 2, (args(),), timeout_s=300)[0]
    assert ranks[0]["score"] > 60  # at random it falls after some 20 steps


def test_ranks_agree_in_everything_but_their_data(two):
    assert [rank["rank"] for rank in two] == [0, 1]
    for name in ("params", "steps", "score", "value"):
        assert two[0][name] == two[1][name]
    assert two[0]["first_data"] != two[1]["first_data"]
    assert [len(rank["kept"]) for rank in two] == [1, 1]  # each keeps its own part, and no more
    assert sum(rank["kept"][0] for rank in two) < SHORT


def test_one_rank_with_the_same_shards_does_the_same(two):
    (one,) = my_off_policy_loop.train(World(), args(SHORT))
    assert one["first_data"] == [data for rank in two for data in rank["first_data"]]
    assert one["kept"] == [kept for rank in two for kept in rank["kept"]]
    assert one["value"] == pytest.approx(two[0]["value"], rel=1e-3)


@pytest.mark.slow
def test_launchers(examples, python):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = (examples / "my_off_policy_loop.py", "--total-steps", 1_200)
    told = python("-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={port}", *script)
    assert "rank 0: parameters" in told
    assert "rank 1: parameters" in told
    launched = python("-m", "lockstep.cli", "launch", "--nproc-per-node", 2, *script)
    assert told.splitlines()[-2:] == [line.partition("] ")[2] or line for line in launched.splitlines()[-2:]]
