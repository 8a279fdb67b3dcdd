"""A restart that cannot begin: the failure before it is reported, and the run is marked as failed."""

import json
import subprocess
import sys

import pytest

from lockstep.launch import supervise
from lockstep.launch.local import RestartPolicy, launch

pytestmark = pytest.mark.real_start  # the ranks import nothing

FAILING = [sys.executable, "-S", "-c", "print('out of luck'); raise SystemExit(3)"]
FULL = """
import resource, sys
from pathlib import Path
from lockstep.launch.local import RestartPolicy, launch
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # longer logs cannot be written, as on a full disk
command = [sys.executable, "-S", "-c", "import os, sys; os.write(1, b'x' * 1999 + b'\\n'); sys.exit(3)"]
sys.exit(launch(command, ranks=1, log_dir=Path(sys.argv[1]), restart_policy=RestartPolicy(max_restarts=1)))
"""


@pytest.fixture
def run(tmp_path):
    """Starts a run with one restart, before which something breaks; returns the code and the summary."""
    (tmp_path / "run.yaml").write_text("task: CartPole-v1\n")

    def started(breaks):
        def next_command():
            breaks()
            return FAILING, "from the start"

        policy = RestartPolicy(max_restarts=2, next_command=next_command)
        code = launch(FAILING, ranks=1, run_dir=tmp_path, restart_policy=policy)
        return code, json.loads((tmp_path / "summary.json").read_text())

    return started


def test_without_a_place_for_logs(run, tmp_path, capfd):
    def breaks():
        (tmp_path / "logs").rename(tmp_path / "earlier")
        (tmp_path / "logs").touch()

    code, summary = run(breaks)
    told = capfd.readouterr().err.splitlines()
    assert code == 3
    assert told[0] == "lockstep: rank 0 exited with code 3; restart 1 of 2 from the start"
    assert told[1].startswith(f"lockstep: error: {tmp_path}/logs cannot be written (")
    assert told[2].startswith("lockstep: rank 0 exited with code 3; this was start 2; log: ")
    assert (summary["status"], summary["error"]) == ("failed", "rank 0 exited with code 3")


def test_without_a_process_to_spare(run, monkeypatch, capfd):
    def breaks():
        def refuse(*_, **__):
            raise BlockingIOError(11, "Resource temporarily unavailable")

        monkeypatch.setattr(supervise.subprocess, "Popen", refuse)

    code, summary = run(breaks)
    assert code == 3 and summary["status"] == "failed"
    told = capfd.readouterr().err.splitlines()
    assert "cannot be started: [Errno 11] Resource temporarily unavailable" in told[1]
    assert told[-1] == "rank 0 | out of luck"


def test_a_full_disk_prevents_no_restart(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "Traceback" not in done.stderr.replace("rank 0 | Traceback", ""), done.stderr
    assert "; this was start 2; log: " in done.stderr
