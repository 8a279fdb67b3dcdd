"""What a command prints must reach the disk, and any terminal."""

import errno
import os
import subprocess
import sys

import pytest

from lockstep.cli import main
from lockstep.record.run_dir import RunDir
from lockstep.run import Run
from lockstep.system.files import write_atomically


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has this file")
@pytest.mark.parametrize("command", [["recipe", "cartpole"], ["submit", "cartpole", "--on", "slurm", "--dry-run"]])
def test_output_that_cannot_be_written_is_an_error(command):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "lockstep.cli", *command],
            stdout=full, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "lockstep: error: the output could not be written: No space left on device"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (
            "train",
            "run/LATEST could not be written: full; free its disk, then start it again, or continue with --resume",
        ),
        (
            "sweep",
            "run/LATEST could not be written: full; free its disk, then give lockstep sweep the directory of the sweep "
            "to continue it",
        ),
        ("report", "run/LATEST could not be written: full"),
    ],
)
def test_a_file_on_a_full_disk_is_named(monkeypatch, capsys, name, wanted):
    def fail(*_):
        raise OSError(errno.ENOSPC, "full", "run/LATEST")

    monkeypatch.setattr(main, "_run", fail)
    assert main.main([name]) == 1
    assert capsys.readouterr().err == f"lockstep: error: {wanted}\n"


def test_an_atomic_write_names_its_file(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"full: '.*/latest'"):
        write_atomically(tmp_path / "latest", "text")
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_without_some_characters_shows_others(tmp_path):
    run = RunDir.create(tmp_path / "Läufe" / "eins", Run(task="CartPole-v1"))
    run.write_metrics(100, 1.0, {"episode/return_mean_100": 7.0})
    run.close()
    for command in (["runs", str(tmp_path / "Läufe")], ["watch", "--once", str(run.path)]):
        done = subprocess.run(
            [sys.executable, "-m", "lockstep.cli", *command],
            capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")
