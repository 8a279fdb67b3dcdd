"""`lockstep.train(run, ranks=N)` returns the summary of a run that a signal stopped."""

import json
import signal

import pytest

from lockstep import train
from lockstep.launch import train_ranks
from lockstep.record.run_dir import SUMMARY_FILE
from lockstep.run import Run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_is_no_error(number, monkeypatch, tmp_path):
    def launch(command, *, run_dir, **_):
        (run_dir / SUMMARY_FILE).write_text(json.dumps({"status": "interrupted", "error": f"signal {number.name}"}))
        return 128 + number

    monkeypatch.setattr(train_ranks, "launch", launch)
    run = Run(task="lockstep/Cartpole-v0", device="cpu")
    assert train(run, ranks=2, run_dir=tmp_path / "run")["status"] == "interrupted"
