"""A rank that fails while it stops after a signal is reported: the run may have no checkpoint of its end."""

import json
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from lockstep.launch.local import RestartPolicy, launch
from lockstep.launch.supervise import Bounds
from lockstep.record.failure import read_failure

pytestmark = pytest.mark.real_start

RANK = """
import json, os, signal, sys, time
rank = int(os.environ["RANK"])
def record(name, **values):
    with open(name, "w") as file:
        json.dump(values, file)
def stop(number, frame):
    {stop}
signal.signal(signal.SIGTERM, stop)
open(f"ready_{{rank}}", "w").close()
time.sleep(60)
"""
RECORDED = 'record("logs/failure.json", rank=0, code=1, message="policy.safetensors: No space left", phase=None)'


def stopped(folder: Path, stop: str) -> tuple[int, dict]:
    """Exit code and summary of a run of two ranks whose launcher gets SIGTERM; `stop` is what they do then."""
    (folder / "run.yaml").write_text("task: CartPole-v1\n")

    def interrupt() -> None:
        while not all((folder / f"ready_{rank}").exists() for rank in range(2)):
            if over.wait(0.02):
                return
        os.kill(os.getpid(), signal.SIGTERM)

    over = threading.Event()
    sender = threading.Thread(target=interrupt)
    sender.start()
    command = [sys.executable, "-S", "-c", RANK.format(stop=stop)]
    code = launch(
        command, ranks=2, run_dir=folder, bounds=Bounds(grace_s=20), restart_policy=RestartPolicy(max_restarts=1)
    )
    over.set()
    sender.join()
    return code, json.loads((folder / "summary.json").read_text())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_failure_is_reported_and_stays_in_the_summary(folder, capfd):
    failed = 'record("summary.json", status="failed", error="policy.safetensors: No space left", steps=7)'
    stop = f"if rank == 0: {failed}; {RECORDED}; print('lockstep: error: it failed'); sys.exit(1)\n    sys.exit(143)"
    code, summary = stopped(folder, stop)
    first, *rest = capfd.readouterr().err.splitlines()
    assert code == 1
    assert first.startswith("lockstep: rank 0: policy.safetensors: No space left (after SIGTERM (signal 15)); ")
    assert rest == ["rank 0 | lockstep: error: it failed"]
    assert summary["status"] == "failed" and summary["steps"] == 7
    assert summary["error"] == "rank 0: policy.safetensors: No space left (after SIGTERM (signal 15))"


def test_a_rank_that_only_saw_another_one_end_is_no_failure(folder, capfd):
    code, summary = stopped(folder, "sys.exit(1 if rank else 143)")
    assert code == 128 + signal.SIGTERM
    assert capfd.readouterr().err.startswith("lockstep: interrupted by SIGTERM (signal 15); all ranks were stopped")
    assert summary["status"] == "interrupted"
    assert read_failure(folder) is None


def test_ranks_that_stopped_as_asked_are_an_interruption(folder):
    stop = 'record("summary.json", status="interrupted", steps=7) if rank == 0 else None; sys.exit(143)'
    assert stopped(folder, stop) == (128 + signal.SIGTERM, {"status": "interrupted", "steps": 7})
