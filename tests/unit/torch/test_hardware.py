"""Threads of a torch run."""

import pytest
import torch

from lockstep.envs.make import env_spec
from lockstep.run import NetworkConfig, Run
from lockstep.system import cores
from lockstep.torch import hardware
from lockstep.torch.networks import Policy
from lockstep.world import World


@pytest.fixture
def threads(monkeypatch):
    """As in a process whose threads nobody has set."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert not cores.threads_are_chosen()
    yield
    torch.set_num_threads(before)


def test_a_run_starts_with_the_same_threads_whatever_ran_before(threads):
    run = Run(task="CartPole-v1", network=NetworkConfig(hidden=(64, 64)))
    spec = env_spec(run.task, run.env)
    policies = []
    for left_by_an_earlier_run in (2, 1):
        torch.set_num_threads(left_by_an_earlier_run)
        hardware.pin(run, World())
        assert torch.get_num_threads() == 1
        policies.append(Policy(spec, run.network, seed=0).state_dict())
    assert all(torch.equal(policies[0][name], policies[1][name]) for name in policies[0])


def test_threads_that_the_user_chose_are_kept(threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("LOCKSTEP_LAUNCHER", "")
    torch.set_num_threads(2)
    hardware.pin(Run(task="CartPole-v1"), World())
    assert torch.get_num_threads() == 2


def test_peak_memory_is_that_of_the_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 100 + device.index)
    assert hardware.peak_memory(torch.device("cuda", 3)) == 103
    assert hardware.peak_memory(torch.device("cpu")) is None
