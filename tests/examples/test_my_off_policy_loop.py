"""`examples/my_off_policy_loop.py`: it learns, each rank from data of its own, and all of them the same."""

import argparse

import my_off_policy_loop
import numpy as np
import pytest
import torch

from lockstep import spawn
from lockstep.launch.rank_environment import free_port

SHORT = 1_600


def arguments(total_steps=SHORT):
    return argparse.Namespace(total_steps=total_steps)


@pytest.fixture(scope="module")
def two():
    """What two ranks did in a short run."""
    return spawn(my_off_policy_loop.train, 2, (arguments(),), timeout_s=300)


@pytest.mark.slow
def test_it_learns():
    ranks = spawn(my_off_policy_loop.train, 2, (arguments(10_000),), timeout_s=300)
    assert ranks[0]["length"] > 60  # at random an episode ends after some 20 steps


def test_ranks_agree_in_everything_but_their_data(two):
    for name, parameter in two[0]["parameters"].items():
        assert torch.equal(parameter, two[1]["parameters"][name])
    assert [len(rank["kept"]) for rank in two] == [1, 1]  # each keeps its own part, and no more
    assert sum(rank["kept"][0] for rank in two) < SHORT
    shards = [my_off_policy_loop.Shard(shard, 4, 100) for shard in range(2)]
    assert not np.array_equal(shards[0].observation, shards[1].observation)


@pytest.mark.slow
def test_one_rank_takes_the_same_steps(two, examples):
    one = my_off_policy_loop.train(0, arguments())
    assert one["kept"] == [kept for rank in two for kept in rank["kept"]]
    for name, parameter in one["parameters"].items():
        torch.testing.assert_close(parameter, two[0]["parameters"][name], atol=2e-5, rtol=1e-3)


@pytest.mark.slow
def test_launchers(examples, python):
    script = (examples / "my_off_policy_loop.py", "--total-steps", 2_000)
    printed = python("-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={free_port()}", *script)
    assert "2000 steps: mean length of an episode" in printed
    launched = python("-m", "lockstep.cli", "launch", "--nproc-per-node", 2, *script)
    last = launched.splitlines()[-1]
    assert printed.splitlines()[-1] in last  # a launcher may put the rank before it
