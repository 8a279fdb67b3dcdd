"""`lockstep offline record`: what it needs."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from lockstep.cli import main as cli

WITHOUT_TORCH = (
    "import sys; sys.modules['torch'] = None; from lockstep.cli import main as cli; sys.exit(cli.main(sys.argv[1:]))"
)


def test_a_task_is_played_at_random_without_torch(here):
    (here / "run").mkdir()
    (here / "run" / "run.yaml").touch()  # a run beside does not make a path of the task's name
    words = ["offline", "record", "CartPole-v1", "--out", "log.jsonl", "--episodes", "2"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *words], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (here / "log.jsonl").read_text().splitlines()]
    assert {row["mdp_id"] for row in rows} == {"0-0-0", "0-1-0"} and {row["propensity"] for row in rows} == {0.5}


def test_the_policy_of_a_run_needs_torch(here, capsys, monkeypatch):
    monkeypatch.setattr("lockstep.session.package_checks._installed", lambda name: name == "jax")
    (here / "run").mkdir()
    assert cli.main(["offline", "record", "run", "--out", "log.jsonl"]) == 2
    assert capsys.readouterr().err.endswith("needs the package torch: pip install 'lockstep-rl[torch]'\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])  # under nohup SIGHUP is ignored
def test_a_signal_ends_a_recording_and_leaves_nothing(here, number):
    words = ["record", "CartPole-v1", "--out", "log.jsonl", "--steps", "100000000"]
    with subprocess.Popen([sys.executable, "-m", "lockstep.cli", "offline", *words]) as process:
        limit = time.monotonic() + 120
        while not os.listdir(here) and time.monotonic() < limit:
            time.sleep(0.05)
        assert os.listdir(here) == [".log.jsonl.part"]
        process.send_signal(number)
        try:
            assert process.wait(timeout=60) == 128 + number
        finally:
            process.kill()
    assert os.listdir(here) == []


@pytest.mark.parametrize("name", ["log.txt", "log", "log.csv", "log.parquet.gz"])
def test_a_log_that_cannot_be_written_is_told_which_can(here, capsys, name):
    assert cli.main(["offline", "record", "CartPole-v1", "--out", name, "--episodes", "1"]) == 2
    expected = f"lockstep: error: {name}: a log is written as .jsonl (also with .gz, .bz2 or .zst) or as .parquet\n"
    assert capsys.readouterr().err == expected
