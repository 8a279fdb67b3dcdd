"""A command that was refused can be repeated with the same `--run-dir`, and nothing else is ever removed."""

import json
from pathlib import Path

import pytest

from lockstep.errors import ConfigError
from lockstep.record.failure import record_failure
from lockstep.record.run_dir import RunDir
from lockstep.run import Run

RUN = Run(task="CartPole-v1")


@pytest.fixture
def refused(tmp_path):
    """What a start leaves whose network does not fit."""
    run_dir = RunDir.create(tmp_path / "mine", RUN, init_from=tmp_path / "policy").path
    record_failure(run_dir, rank=0, message="network.module=a.py:Net failed", code=ConfigError.exit_code)
    for rank in range(2):
        (run_dir / "logs" / f"rank_{rank}.log").write_text("lockstep: error: network.module=a.py:Net failed\n")
    (run_dir / "summary.json").write_text(json.dumps({"status": "failed", "env_steps": 0}))
    return run_dir


def test_the_directory_of_a_refused_run_is_used_again(refused):
    made = RunDir.create(refused, Run(task="CartPole-v1", seed=7))
    assert [entry.name for entry in made.path.iterdir()] == ["run.yaml"]
    assert "seed: 7\n" in (refused / "run.yaml").read_text()


def steps(run_dir):
    (run_dir / "summary.json").write_text(json.dumps({"status": "failed", "env_steps": 64}))


def other_error(run_dir):
    text = (run_dir / "logs" / "failure.json").read_text()
    (run_dir / "logs" / "failure.json").write_text(text.replace('"code": 2', '"code": 1'))


@pytest.mark.parametrize(
    "change",
    [
        steps,
        other_error,
        lambda run_dir: (run_dir / "metrics.jsonl").write_text("{}\n"),
        lambda run_dir: (run_dir / "checkpoints").mkdir(),
        lambda run_dir: (run_dir / "notes.txt").write_text("mine"),
        lambda run_dir: (run_dir / "logs" / "failure_1.json").write_text("{}"),
        lambda run_dir: (run_dir / "logs" / "failure.json").unlink(),
        lambda run_dir: (run_dir / "run.yaml").unlink(),
    ],
)
def test_any_other_directory_is_kept(refused, change):
    change(refused)
    before = {path: path.read_bytes() for path in refused.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="already holds files"):
        RunDir.create(refused, RUN)
    assert {path: path.read_bytes() for path in refused.rglob("*") if path.is_file()} == before


def test_a_network_that_was_refused_can_be_corrected(tmp_path, monkeypatch):
    lockstep = pytest.importorskip("lockstep")
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text("import torch\n\ndef net(size, outputs):\n    return torch.nn.Linear(size, 1)\n")
    run = Run(task="lockstep/Corridor-v0", num_envs=4, total_steps=64)
    settings = {"network.module": "nets.py:net", "num_steps": 16, "num_minibatches": 1, "evaluate_every": None}
    with pytest.raises(ConfigError, match=r"network\.module=.*made \[2, 1\] of 2 observations"):
        lockstep.train(run, run_dir="mine", **settings)
    assert Path("mine/run.yaml").is_file()
    settings.pop("network.module")
    assert lockstep.train(run, run_dir="mine", **settings)["status"] == "finished"
