"""Directories that this user may not read: refused where they are named, left out below."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from lockstep.cli import main as cli
from lockstep.record.run_dir import RunDir
from lockstep.run import Run

NOBODY = 65534


@pytest.fixture
def closed(monkeypatch):
    """`runs/` with a run before and one after a closed directory, as a user who is not root."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o755)
    monkeypatch.chdir(path)
    for name in ("a", "closed", "z"):
        RunDir.create(f"runs/{name}", Run(task="CartPole-v1")).close()
    before = os.geteuid()
    for command in COMMANDS:  # imports what it needs while all can be read
        cli.main([command[0], "nowhere", *command[1:]])
    Path("runs/closed").chmod(0)
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield path
    finally:
        os.seteuid(before)
        Path("runs/closed").chmod(0o755)
        shutil.rmtree(path)


COMMANDS = (["runs"], ["report"], ["watch", "--once"], ["evaluate"], ["export"])


def test_other_runs_are_listed(closed, capsys):
    for command in ("runs", "report"):
        capsys.readouterr()
        assert cli.main([command, "--json"]) == 0
        runs = json.loads(capsys.readouterr().out)["runs"]
        assert sorted(run["run"] for run in runs) == ["runs/a", "runs/z"]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_closed_directory_that_is_named_is_refused(closed, capsys, command):
    for name in ("runs/closed", "runs/closed/inner"):
        capsys.readouterr()
        assert cli.main([command[0], name, *command[1:]]) == 2
        assert f"{name} cannot be read (permission denied)" in capsys.readouterr().err
