"""Recipes learn, on every seed tried and on any number of ranks. Minutes: `make test-learning`."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.learning


def evaluation_return(folder, recipe, ranks, seed):
    run_dir = folder / "run"
    command = [sys.executable, "-m", "lockstep.train", recipe, "--ranks", str(ranks), "--seed", str(seed)]
    done = subprocess.run([*command, "--run-dir", str(run_dir)], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return json.loads((run_dir / "summary.json").read_text())["eval_return_mean"]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_cartpole_is_solved(tmp_path, ranks, seed):
    assert evaluation_return(tmp_path, "cartpole", ranks, seed) >= 475


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_cartpole_is_solved_by_dqn(tmp_path, ranks, seed):
    assert evaluation_return(tmp_path, "cartpole_dqn", ranks, seed) >= 475


@pytest.mark.parametrize("seed", range(5))
def test_pendulum_is_learned(tmp_path, seed):
    assert evaluation_return(tmp_path, "pendulum", 1, seed) >= -250


@pytest.mark.parametrize("ranks", [1, 2])
def test_isaac_cartpole_is_learned(tmp_path, ranks):
    # Random actions return -11; staying upright and still for 5 s returns 5.
    assert evaluation_return(tmp_path, "cartpole_isaac", ranks, 42) >= 4.85
