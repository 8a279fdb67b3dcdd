"""`examples/my_loop.py`: alone and on two ranks, however they are started, it takes the same steps."""

import argparse
import json
from pathlib import Path

import my_loop
import pytest
import torch

from lockstep import Comm, RunError, World, spawn
from lockstep.cli.runs import list_run
from lockstep.launch.rank_environment import free_port

UPDATES = 2


def args(ddp=False):
    return argparse.Namespace(ranks=2, updates=UPDATES, ddp=ddp)


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
    my_loop.train(rank, given)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Parameters after training in one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("alone"))
        my_loop.train(0, args())
        return result()


def result():
    """Steps and policy of the only run here."""
    (run,) = Path("runs").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert len((run / "metrics.jsonl").read_text().splitlines()) == summary["updates"] == UPDATES
    listed = list_run(run)
    assert (listed.status, listed.task, listed.algo) == ("finished", "CartPole-v1", "reinforce")
    assert listed.ranks == summary["world_size"]
    return summary["env_steps"], torch.load(run / "policy.pt", weights_only=True)


def assert_same(two, one):
    """Same episodes, and the same parameters up to the order of sums."""
    assert two[0] == one[0]
    for name, parameter in two[1].items():
        torch.testing.assert_close(parameter, one[1][name], atol=2e-5, rtol=1e-3)


def test_ranks_2(alone, examples, python):
    out = python(examples / "my_loop.py", "--ranks", 2, "--updates", UPDATES)
    assert "equal parameters on 2 ranks" in out
    assert_same(result(), alone)


@pytest.mark.slow
def test_torchrun(alone, examples, python):
    torchrun = ("-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={free_port()}")
    python(*torchrun, examples / "my_loop.py", "--updates", UPDATES)
    assert_same(result(), alone)


def test_more_ranks_than_episodes_are_refused(examples, monkeypatch):
    for variable, value in {"RANK": 0, "WORLD_SIZE": 17, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(variable, str(value))
    with pytest.raises(AssertionError, match="16 episodes are too few for 17 ranks"):
        my_loop.train(0, args())


def sum_over_ranks(rank, port):
    """A rank whose world is not in its environment."""
    with Comm(World(rank=rank, size=2, address="127.0.0.1", port=port), device="cpu") as comm:
        assert comm.sum(torch.ones(1)).item() == 2


@pytest.mark.slow
def test_ranks_of_torch_multiprocessing_get_their_world_as_values():
    torch.multiprocessing.spawn(sum_over_ranks, args=(free_port(),), nprocs=2)


@pytest.mark.slow
def test_ddp(alone, examples):
    spawn(my_loop.train, 2, (args(ddp=True),), timeout_s=120)
    assert_same(result(), alone)


def test_a_rank_that_raises_is_named(examples):
    with pytest.raises(RunError, match="rank 1: ValueError: the motor is hot") as caught:
        spawn(fails, 2, (args(),), timeout_s=120)
    assert "in play" in str(caught.value.__cause__)  # where it was raised


@pytest.mark.slow
def test_a_shared_stop_ends_all_ranks(examples, monkeypatch):
    monkeypatch.setattr(my_loop, "SOLVED", 0.0)
    given = argparse.Namespace(**vars(args()) | {"updates": 30})
    my_loop.train(0, given)
    (run,) = Path("runs").iterdir()
    assert json.loads((run / "summary.json").read_text())["updates"] == 10
