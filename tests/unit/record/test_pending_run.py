"""The time from the command to the journal: what a start that does not succeed leaves behind."""

import functools
import os
import signal
import subprocess
import sys

import pytest

from lockstep.errors import ConfigError
from lockstep.record import pending_run, run_dir
from lockstep.record.pending_run import PendingRun
from lockstep.record.run_status import is_running
from lockstep.run import Run

PROGRAM = """
import ctypes, sys
from pathlib import Path
from lockstep.record.pending_run import PendingRun
from lockstep.run import Run

pending = PendingRun(Path("runs/mine"))
pending.make(Run(task="lockstep/Cartpole-v0"), alone=False)
if sys.argv[1] == "released":
    pending.release_signals()
print("ready", flush=True)
ctypes.CDLL(None).usleep(60_000_000)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize(
    ("state", "code", "left"), [("pending", lambda n: 128 + n, []), ("released", int.__neg__, ["runs"])]
)
def test_a_signal_removes_the_run_directory_until_the_signals_are_released(tmp_path, number, state, code, left):
    command = [sys.executable, "-c", PROGRAM, state]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(timeout=30) == code(number)
    assert os.listdir(tmp_path) == left


def test_run_is_in_progress_from_its_directory_on(tmp_path):
    """Also while it imports its framework, before the journal takes the lock over."""
    run = Run(task="lockstep/Cartpole-v0")
    pending = PendingRun(tmp_path / "mine")
    pending.make(run, alone=True)
    assert is_running(tmp_path / "mine")
    path = pending.run_dir(run).path
    lock = pending.take_lock(path)
    pending.discard()
    assert is_running(path)
    os.close(lock)
    assert not is_running(path)
    abandoned = PendingRun(tmp_path / "other")
    abandoned.make(run, alone=True)
    abandoned.discard()
    assert not (tmp_path / "other").exists()


def test_a_start_that_loses_the_race_for_a_directory_leaves_it_to_the_other(tmp_path, monkeypatch):
    run, first, second = Run(task="lockstep/Cartpole-v0"), PendingRun(tmp_path / "mine"), PendingRun(tmp_path / "mine")
    assert first.make(run, alone=True)
    monkeypatch.setattr(run_dir, "_make_empty", lambda path, made: path)  # it looked when nothing was there
    monkeypatch.setattr(pending_run, "lock_run_dir", functools.partial(run_dir.lock_run_dir, timeout_s=0))
    assert not second.make(run, alone=False)
    second.discard()
    with pytest.raises(ConfigError, match="is in use"):
        second.run_dir(run)
    assert (tmp_path / "mine" / "run.yaml").exists()
    first.discard()
    assert not (tmp_path / "mine").exists()
