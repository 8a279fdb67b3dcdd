"""Recipes and defaults of tasks learn, on every seed tried and any number of ranks. Minutes: `make test-learning`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.learning


def evaluation_return(folder, target, ranks, seed, **settings):
    run_dir = folder / "run"
    command = [sys.executable, "-m", "lockstep.train", target, "--ranks", str(ranks), "--seed", str(seed)]
    command += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    done = subprocess.run([*command, "--run-dir", str(run_dir)], capture_output=True, text=True, timeout=3600)
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
@pytest.mark.parametrize("seed", range(3))
def test_pendulum_is_learned_by_sac(tmp_path, ranks, seed):
    assert evaluation_return(tmp_path, "pendulum_sac", ranks, seed) >= -200


@pytest.mark.parametrize("ranks", [1, 2])
def test_isaac_cartpole_is_learned(tmp_path, ranks):
    # Random actions return -11; staying upright and still for 5 s returns 5.
    assert evaluation_return(tmp_path, "cartpole_isaac", ranks, 42) >= 4.85


@pytest.mark.parametrize(("seed", "ranks"), [(0, 1), (1, 2), (2, 1), (3, 2)])
def test_cartpole_stays_solved_for_three_million_steps(tmp_path, ranks, seed):
    settings = {"num_shards": 2, "total_steps": 3_000_000, "stop_when_solved": "false", "evaluate_every": 500_000}
    assert evaluation_return(tmp_path, "CartPole-v1", ranks, seed, **settings) >= 475


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize(("task", "least"), [("Acrobot-v1", -100), ("LunarLander-v3", 200), ("Hopper-v5", 1500)])
def test_the_defaults_of_a_task_learn_it(tmp_path, task, least, framework):
    assert evaluation_return(tmp_path, task, 1, 0, ml_framework=framework) >= least


@pytest.mark.parametrize(("framework", "ranks"), [("torch", 1), ("jax", 2)])
@pytest.mark.parametrize(("task", "least"), [("Acrobot-v1", -100), ("CartPole-v1", 475), ("LunarLander-v3", 200)])
def test_the_defaults_of_a_task_learn_it_by_dqn(tmp_path, task, least, framework, ranks):
    assert evaluation_return(tmp_path, task, ranks, 0, algo="dqn", ml_framework=framework) >= least


MEMORY_TASKS = [("lockstep/HiddenCartpole-v0", 475.0), ("lockstep/RememberCue-v0", 0.95)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("task", "solved"), MEMORY_TASKS)
def test_recurrent_policy_solves_a_task_that_needs_memory(tmp_path, task, solved, seed):
    settings = {"network.recurrent": "gru", "evaluate_every": 50_000, "total_steps": 300_000}
    assert evaluation_return(tmp_path, task, 1, seed, **settings) >= solved


@pytest.mark.parametrize(("task", "solved"), MEMORY_TASKS)
def test_policy_without_memory_stays_below_half(tmp_path, task, solved):
    assert evaluation_return(tmp_path, task, 1, 0, total_steps=300_000) < solved / 2


REACH = f"{Path(__file__).parents[1] / 'ranks' / 'grouped_envs.py'}:Reach"


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize(
    ("keys", "least", "most"), [("[camera,joint]", 6.0, 8.0), ("[camera]", 0.0, 4.0), ("[joint]", 0.0, 4.0)]
)
def test_images_and_numbers_together_learn_what_neither_shows(tmp_path, keys, least, most, framework):
    settings = {"total_steps": 30_000, "network.features": 32, "evaluate_every": "null", "evaluate_episodes": 100}
    settings |= {"env.policy_keys": keys, "ml_framework": framework, "stop_when_solved": "false"}
    assert least <= evaluation_return(tmp_path, REACH, 1, 0, **settings) <= most
