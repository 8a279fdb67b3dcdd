"""For the tests of the command line: a place of their own, and what it would start told instead of started."""

import sys
import types

import pytest

from lockstep.launch import gpus
from lockstep.launch import train_ranks as training

LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, no launcher, no GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(gpus, "nvidia_gpu_present", lambda: False)
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def trained(monkeypatch):
    """Calls of `lockstep.launch.train.train_checked`, which does nothing."""
    calls = []

    def train(run, **kwargs):
        calls.append(types.SimpleNamespace(run=run, **kwargs))
        return {"status": "finished"}

    monkeypatch.setattr("lockstep.launch.train.train_checked", train)
    return calls


@pytest.fixture
def launched(monkeypatch):
    """Calls of the launcher, which starts nothing."""
    calls = []

    def launch(command, **kwargs):
        calls.append(types.SimpleNamespace(command=command, **kwargs))
        return 7

    monkeypatch.setattr(training, "launch", launch)
    return calls
