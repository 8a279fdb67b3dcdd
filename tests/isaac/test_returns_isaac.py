"""Returns on the real `Isaac-Cartpole`, at most 5: of Lockstep's PPO, and of the libraries."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from isaac_process import run_python

pytestmark = pytest.mark.isaac
if find_spec("isaaclab_tasks") is None:
    pytest.skip("needs Isaac Lab: make test-isaac", allow_module_level=True)

PLAY = Path(__file__).with_name("play_cartpole.py")


def summary(folder):
    return json.loads((folder / "run" / "summary.json").read_text())


def test_own_ppo_on_two_ranks(tmp_path):
    command = ["-m", "lockstep", "train", "Isaac-Cartpole", "--agent", "skrl", "--num-envs", "1024", "--seed", "1"]
    command += ["--max-iterations", "40", "--ranks", "2", "--run-dir", "run"]
    for setting in ("evaluate_every=null", "evaluate_episodes=64", "stop_when_solved=false"):
        command += ["--set", setting]
    run_python(tmp_path, *command)
    assert summary(tmp_path)["eval_return_mean"] >= 4.8


@pytest.mark.parametrize(
    ("library", "num_envs", "reached"),
    [
        ("skrl", 512, 4.8),
        ("rsl_rl", 512, 4.8),
        ("rl_games", 1024, 2.0),  # its settings scatter: 1.3 to 4.9 over ten seeds, docs/results/robots.md
    ],
)
def test_libraries_on_two_ranks(tmp_path, library, num_envs, reached):
    flags = ("--num_envs", str(num_envs), "--max_iterations", "60", "--seed", "1", "--ranks", "2", "--run_dir", "run")
    run_python(tmp_path, "-m", f"lockstep.workflows.{library}", "--task", "Isaac-Cartpole", *flags)
    assert summary(tmp_path)["return_mean_100"] >= reached


def test_a_policy_of_the_built_in_task_balances_the_real_one(tmp_path):
    run_python(tmp_path, "-m", "lockstep", "train", "cartpole_isaac", "--run-dir", "run")
    assert float(run_python(tmp_path, str(PLAY), "run")) >= 4.8
