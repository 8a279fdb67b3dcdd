"""`examples/my_algorithm.py`: it learns, and the number of ranks changes no bit."""

import json
from pathlib import Path

import my_algorithm
import pytest

from lockstep import ConfigError, Run, RunError, spawn
from lockstep.algorithms.ppo import PPOConfig
from lockstep.cli.evaluate import evaluate_run
from lockstep.run import override


def pinned(**changes):
    algorithm = PPOConfig(num_steps=8, learning_rate=2e-3, gae_lambda=0.95)
    counts = {"num_envs": 8, "total_steps": 20 * 64, "evaluate_every": None, "evaluate_episodes": 4, **changes}
    return Run(task="CartPole-v1", device="cpu", num_shards=2, algorithm=algorithm, **counts)


def test_two_ranks_and_one_end_with_the_same_bits(examples, tmp_path):
    one = my_algorithm.train(0, pinned(), tmp_path / "one")
    two = spawn(my_algorithm.train, 2, (pinned(), tmp_path / "two"), timeout_s=120)[0]
    assert (one["world_size"], two["world_size"]) == (1, 2)
    assert one["updates"] == two["updates"] == 20
    assert one["params_fingerprint"] == two["params_fingerprint"]
    assert one["eval_return_mean"] == two["eval_return_mean"]
    assert len({rank["params_fingerprint"] for rank in two["ranks"]}) == 1
    assert len({rank["first_rollout_fingerprint"] for rank in two["ranks"]}) == 2
    assert [rank["env_steps"] for rank in two["ranks"]] == [640, 640]


def test_the_seed_moves_the_parameters(examples, tmp_path):
    ends = {
        my_algorithm.train(0, pinned(seed=seed, total_steps=64), tmp_path / str(seed))["params_fingerprint"]
        for seed in (0, 1)
    }
    assert len(ends) == 2


def test_a_stopped_run_is_resumed_to_the_same_bits(examples, tmp_path):
    whole = my_algorithm.train(0, pinned(), tmp_path / "whole")
    my_algorithm.train(0, pinned(total_steps=10 * 64), tmp_path / "part")
    resumed = my_algorithm.train(0, pinned(), resume=tmp_path / "part")
    assert resumed["updates"] == 20
    assert resumed["params_fingerprint"] == whole["params_fingerprint"]


def test_the_policy_of_a_checkpoint_is_evaluated(examples, tmp_path, monkeypatch):
    my_algorithm.train(0, pinned(total_steps=2 * 64), tmp_path / "run")
    assert evaluate_run(tmp_path / "run", episodes=2, step=128)["eval_episodes"] == 2

    named = my_algorithm.A2C.shared_tensors
    monkeypatch.setattr(
        my_algorithm.A2C, "shared_tensors", lambda a2c: {f"net.{name}": t for name, t in named(a2c).items()}
    )
    my_algorithm.train(0, pinned(total_steps=2 * 64), tmp_path / "other")
    words = (
        r"step_128 was written by my_algorithm\.A2C, whose state has no tensors named policy\.NAME; .*evaluate .*other$"
    )
    with pytest.raises(ConfigError, match=words):
        evaluate_run(tmp_path / "other", episodes=2, step=128)
    assert evaluate_run(tmp_path / "other", episodes=2)["eval_episodes"] == 2


def test_the_script_names_its_run_for_the_algorithm(examples, python):
    python(examples / "my_algorithm.py", "--total-steps", 128)
    (run,) = Path("runs").iterdir()
    assert run.name.startswith("a2c-")
    python(examples / "my_algorithm.py", "--total-steps", 256, "--resume", run)
    assert json.loads((run / "summary.json").read_text())["env_steps"] == 256


DIVERGING = """
import gymnasium
import numpy as np


class Diverging(gymnasium.Env):
    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), float("nan") if self.steps == 60 else 1.0, self.steps % 10 == 0, False, {}
"""


def test_a_reward_that_is_not_finite_ends_the_run_before_it_is_learned_from(examples, tmp_path):
    (tmp_path / "diverging.py").write_text(DIVERGING)
    run = override(pinned(checkpoint_every=600, total_steps=3000), {"task": f"{tmp_path / 'diverging.py'}:Diverging"})
    with pytest.raises(RunError, match=r"reward that is not finite \(nan\), in step 3 of this rollout"):
        my_algorithm.train(0, run, tmp_path / "run")
    assert not list((tmp_path / "run").glob("checkpoints/step_*"))


@pytest.mark.slow
def test_it_learns(examples, tmp_path):
    summary = my_algorithm.train(0, pinned(num_envs=16, total_steps=30_000), tmp_path / "run")
    assert summary["return_mean_100"] > 80
