"""An environment whose bounds of actions change: its checkpoints, its policy and its policy elsewhere."""

import os

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import lockstep
from lockstep.algorithms.sac import SACConfig
from lockstep.cli.main import main
from lockstep.config.env import EnvConfig
from lockstep.errors import ConfigError
from lockstep.run import NetworkConfig, Run


class Bounded(gymnasium.Env):
    """Episodes of ten steps; `MOST` in the environment of the process stands for an edit of this class."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self):
        most = float(os.environ.get("MOST", "5"))
        self.action_space = spaces.Box(np.array([-2.0, 0.0]), np.array([most, 1.0]))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(2, self.steps / 10, np.float32), float(action[0]), False, self.steps == 10, {}


class Choices(Bounded):
    """`MOST` is the number of actions."""

    def __init__(self):
        self.action_space = spaces.Discrete(int(os.environ.get("MOST", "2")))

    def step(self, action):
        return super().step([action])


def run_of(**settings):
    return Run(
        task=f"{__name__}:Bounded", algo="sac", num_envs=2, total_steps=40, checkpoint_every=20, evaluate_episodes=2,
        algorithm=SACConfig(learning_starts=10, batch_size=8), network=NetworkConfig(hidden=(8,)),
        env=EnvConfig(vectorization="sync"), **settings,
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("run") / "run"
    lockstep.train(run_of(), run_dir=run_dir)
    return run_dir


def test_a_checkpoint_of_other_bounds_is_refused_and_the_run_is_left_as_it_was(trained, monkeypatch):
    before = (trained / "summary.json").read_bytes()
    monkeypatch.setenv("MOST", "1")
    with pytest.raises(
        ConfigError, match=r"actions from \[-2.0, 0.0\] to \[5.0, 1.0\], and the task now .* to \[1.0, 1.0\]"
    ):
        lockstep.train(resume=trained, total_steps=80)
    assert (trained / "summary.json").read_bytes() == before


def test_a_policy_of_other_bounds_is_not_played(trained, monkeypatch, capsys):
    monkeypatch.setenv("MOST", "1")
    assert main(["evaluate", str(trained), "--episodes", "2"]) == 2
    said = capsys.readouterr().err
    assert "to [1.0, 1.0], and the policy was trained with actions from [-2.0, 0.0] to [5.0, 1.0]" in said


def test_a_run_that_starts_from_a_policy_of_other_bounds_says_so(trained, tmp_path, monkeypatch, capfd):
    lockstep.train(run_of(), run_dir=tmp_path / "same", init_from=trained)
    assert "was trained with actions from" not in capfd.readouterr().out
    monkeypatch.setenv("MOST", "1")
    lockstep.train(run_of(), run_dir=tmp_path / "other", init_from=trained)
    assert "was trained with actions from [-2.0, 0.0] to [5.0, 1.0], and this task" in capfd.readouterr().out


def test_a_run_that_starts_from_a_policy_of_clipped_observations_says_so(trained, tmp_path, capfd):
    clips = {"env.clip_observation": 0.5}
    lockstep.train(run_of(), run_dir=tmp_path / "other", init_from=trained, **clips)
    assert "was trained with env.clip_observation=null, and this run has 0.5: it observes" in capfd.readouterr().out
    lockstep.train(run_of(), run_dir=tmp_path / "same", init_from=tmp_path / "other", **clips)
    assert "was trained with env.clip_observation" not in capfd.readouterr().out


def test_the_same_bounds_go_on(trained, tmp_path):
    lockstep.train(run_of(), run_dir=tmp_path / "run")
    assert lockstep.train(resume=tmp_path / "run", total_steps=80)["env_steps"] == 80


def test_another_number_of_choices_is_said_as_such(tmp_path, monkeypatch):
    small = {"total_steps": 8, "num_envs": 2, "num_steps": 2, "hidden": [8], "evaluate_episodes": 2}
    lockstep.train(
        f"{__name__}:Choices", algo="dqn", run_dir=tmp_path / "run", learning_starts=4, batch_size=4, **small
    )
    monkeypatch.setenv("MOST", "3")
    with pytest.raises(
        ConfigError, match="made with actions of 2 choices, and the task now takes actions of 3 choices;"
    ):
        lockstep.train(resume=tmp_path / "run", total_steps=16)
