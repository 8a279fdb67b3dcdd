"""Unique identities of processes, and the private folder for their files."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.errors import ConfigError
from lockstep.system.processes import identity, private_folder, torchrun_agent

PRINT_AGENT = "import os; from lockstep.system.processes import torchrun_agent; print(torchrun_agent())"


def output_of(*command, **variables):
    """The output of a process that `command` starts as a descendant of this one."""
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_torchrun_agent_is_the_nearest_ancestor_without_rank_variables():
    python = [sys.executable, "-c", PRINT_AGENT]
    wrapped = ["bash", "-c", f"'{sys.executable}' -c '{PRINT_AGENT}'; true"]
    twice = ["bash", "-c", f"bash -c \"'{sys.executable}' -c '{PRINT_AGENT}'; true\"; true"]
    for command in (python, wrapped, twice):
        assert output_of(*command, TORCHELASTIC_RUN_ID="123") == str(os.getpid())
        assert output_of(*command, TORCHELASTIC_RUN_ID="none") == str(os.getpid())


def test_no_agent_without_torchrun():
    assert torchrun_agent({}) is None
    assert output_of(sys.executable, "-c", PRINT_AGENT) == "None"


def test_identity_is_unique_to_a_process():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        names = {identity(os.getpid()), identity(child.pid), identity(os.getpid())}
    finally:
        child.communicate(b"\n")
    assert len(names) == 2
    boot, namespace, pid, started = identity(os.getpid()).split("-")
    assert re.fullmatch("[0-9a-f]{32}", boot)
    assert (int(pid), int(namespace)) == (os.getpid(), os.stat("/proc/self/ns/pid").st_ino)
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    assert int(started) == ticks


def test_only_files_of_ended_processes_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = private_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    own = identity(os.getpid())
    boot, namespace, pid, started = own.split("-")
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    stay = [
        f"{own}.json",
        f"{own}.ab.json",
        f"{boot}-{int(namespace) + 1}-{pid}-1.json",
        f"{'0' * 32}-{namespace}-{pid}-1.json",
    ]
    gone = [f"{boot}-{namespace}-{pid}-{int(started) + 1}.json", f"{boot}-{namespace}-{child.pid}-1.json"]
    for name in (*stay, *gone, "another"):
        (folder / name).touch()
    assert private_folder() == folder
    assert sorted(os.listdir(folder)) == sorted([*stay, "another"])


def test_folder_writable_by_others_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = private_folder()
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="not private to this user"):
        private_folder()
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="not private to this user"):
        private_folder()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="set TMPDIR to another directory"):
        private_folder()
