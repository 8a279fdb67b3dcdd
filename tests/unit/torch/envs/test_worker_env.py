"""Environments on torch tensors in a process of their own."""

import os
import signal
from pathlib import Path

import pytest
import torch

from lockstep.config.env import EnvConfig
from lockstep.errors import ConfigError, RunError
from lockstep.torch.envs.make import make_tensor_env
from lockstep.torch.envs.worker import WorkerEnv

FILE = Path(__file__).parent / "tensor_envs.py"
CPU = torch.device("cpu")


@pytest.fixture
def worker():
    env = WorkerEnv(f"{FILE}:Walk", EnvConfig(), 4, CPU)
    yield env
    env.close()


def test_a_worker_gives_the_bits_of_this_process_and_ends(worker):
    here = make_tensor_env(f"{FILE}:Walk", EnvConfig(), 4, CPU)
    assert worker.spec == here.spec
    ours, theirs = here.reset([3]), worker.reset([3])
    assert torch.equal(ours.policy, theirs.policy)
    assert torch.equal(ours.critic, theirs.critic)
    for _ in range(8):
        action = torch.full((4, 1), 0.2)
        a, b = here.step(action), worker.step(action)
        for ours, theirs in zip((*a.observation, *a[1:4], *a.final), (*b.observation, *b[1:4], *b.final), strict=True):
            assert torch.equal(ours, theirs)
    pid = worker._process.pid
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_death_of_a_worker_is_an_error_that_names_the_task(worker):
    worker.reset([3])
    os.kill(worker._process.pid, signal.SIGKILL)
    with pytest.raises(RunError, match=r"Walk was killed by SIGKILL \(signal 9\)"):
        worker.step(torch.zeros(4, 1))


def test_what_cannot_be_made_is_refused_and_leaves_no_process():
    with pytest.raises(ConfigError, match="did you mean autoreset"):
        WorkerEnv(f"{FILE}:Walk", EnvConfig(kwargs={"autorest": "next_step"}), 4, CPU)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("WithoutFile", r"^FileNotFoundError: .*/nowhere/terrain\.npz"),
        ("OneReward", r"^the environments gave rewards of the shape \[\], and their spec says \[4\]"),
    ],
)
def test_an_error_in_a_step_reaches_the_rank(name, said):
    env = WorkerEnv(f"{FILE}:{name}", EnvConfig(), 4, CPU)
    env.reset([3])
    with pytest.raises(RunError, match=said):
        env.step(torch.zeros(4, 1))
    env.close()


def test_a_worker_ends_without_a_word_when_the_rank_closed_its_end(worker, capfd):
    worker.reset([3])
    worker._pipe.close()
    worker._process.join(60)
    assert worker._process.exitcode == 0
    assert "Traceback" not in capfd.readouterr().err
