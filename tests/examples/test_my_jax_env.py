"""`examples/my_jax_env.py`, as its first lines say."""

import json
from pathlib import Path

import pytest

pytest.importorskip("jax")


@pytest.mark.slow
def test_it_has_no_faults(examples, python):
    out = python("-m", "lockstep.cli", "check", examples / "my_jax_env.py:MyJaxEnv")
    assert out.splitlines()[-1] == "no faults, no warnings"
    assert "can be saved in mid-episode" in out


@pytest.mark.slow
def test_it_is_learned_on_the_device(examples, python):
    python(
        "-m", "lockstep.train", examples / "my_jax_env.py:MyJaxEnv", "--ml-framework", "jax", "--run-dir", "run",
        "--set", "num_envs=64", "--set", "learning_rate=1e-3", "--set", "env.kwargs.width=3",
        "--set", "total_steps=100_000", "--set", "evaluate_every=10_000",
    )  # fmt: skip
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["status"] == "solved", summary["eval_return_mean"]
