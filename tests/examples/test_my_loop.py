"""`examples/my_loop.py`: alone and on two ranks, however they are started, it takes the same steps."""

import argparse
import json
import socket
from pathlib import Path

import my_loop
import pytest
import torch

from lockstep import RunError, World, spawn

UPDATES = 2


def args(ddp=False):
    return argparse.Namespace(ranks=2, updates=UPDATES, device="cpu", ddp=ddp, mp_spawn=False, port=0)


def fails(rank, given):
    """The loop, with an environment that breaks on rank 1 in the second update."""
    played = my_loop.play

    def play(env, policy, seed, noise):
        if rank == 1 and env.unwrapped.spec and play.calls >= my_loop.EPISODES // 2:
            raise ValueError("the motor is hot")
        play.calls += 1
        return played(env, policy, seed, noise)

    play.calls = 0
    my_loop.play = play
    my_loop.train(World.from_environment(), given)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Parameters after training in one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("alone"))
        (rank,) = my_loop.train(World(), args())
        return result(rank["rank"] + 1)


def result(ranks):
    """The policy of the only run here, of which all ranks had equal parameters and different data."""
    (run,) = Path("runs").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert [rank["rank"] for rank in summary["ranks"]] == list(range(ranks))
    assert len({rank["params"] for rank in summary["ranks"]}) == 1
    assert len({rank["first_data"] for rank in summary["ranks"]}) == ranks
    assert len((run / "metrics.jsonl").read_text().splitlines()) == summary["updates"] == UPDATES
    return summary["env_steps"], torch.load(run / "policy.pt", weights_only=True)


def free_port():
    """A port for launchers that want to be told one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def assert_same(two, one):
    """Same episodes, and the same parameters up to the order of sums."""
    assert two[0] == one[0]
    for name, parameter in two[1].items():
        torch.testing.assert_close(parameter, one[1][name], atol=2e-5, rtol=1e-3)


def test_ranks_2(alone, examples, python):
    out = python(examples / "my_loop.py", "--ranks", 2, "--updates", UPDATES)
    assert "rank 0: parameters" in out and "rank 1: parameters" in out
    assert_same(result(2), alone)


@pytest.mark.slow
def test_torchrun(alone, examples, python):
    torchrun = ("-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={free_port()}")
    python(*torchrun, examples / "my_loop.py", "--updates", UPDATES)
    assert_same(result(2), alone)


@pytest.mark.slow
def test_mp_spawn(alone, examples, python):
    python(examples / "my_loop.py", "--ranks", 2, "--mp-spawn", "--port", free_port(), "--updates", UPDATES)
    assert_same(result(2), alone)


@pytest.mark.slow
def test_ddp(alone, examples):
    spawn(my_loop.spawned, 2, (args(ddp=True),), timeout_s=120)
    assert_same(result(2), alone)


def test_a_rank_that_raises_is_named(examples):
    with pytest.raises(RunError, match="rank 1: ValueError: the motor is hot") as caught:
        spawn(fails, 2, (args(),), timeout_s=120)
    assert "in play" in str(caught.value.__cause__)  # where it was raised


def test_a_shared_stop_ends_all_ranks(examples, monkeypatch):
    monkeypatch.setattr(my_loop, "SOLVED", 0.0)
    given = argparse.Namespace(**vars(args()) | {"updates": 30})
    my_loop.train(World(), given)
    (run,) = Path("runs").iterdir()
    assert json.loads((run / "summary.json").read_text())["updates"] == 10
