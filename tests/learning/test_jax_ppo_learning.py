"""The recipe of CartPole learns in JAX, too, on every seed tried and on any number of ranks: `make test-learning`."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("jax")
pytestmark = pytest.mark.learning


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_cartpole_is_solved_in_jax(tmp_path, ranks, seed):
    words = ["cartpole", "--ml-framework", "jax", "--ranks", str(ranks), "--seed", str(seed)]
    command = [sys.executable, "-m", "lockstep.train", *words, "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run/summary.json").read_text())["eval_return_mean"] >= 475
