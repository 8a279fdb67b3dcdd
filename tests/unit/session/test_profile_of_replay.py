"""`--profile` of algorithms with a replay buffer: what it records is after learning has begun."""

import gzip
import json

import pytest

import lockstep
from lockstep.algorithms.dqn import DQNConfig
from lockstep.errors import ConfigError
from lockstep.run import EnvConfig, Run, override
from lockstep.session.gradient_schedule import updates_before_learning
from lockstep.session.profile import check_profile


@pytest.fixture
def run():
    return Run(
        task="lockstep/Corridor-v0",
        algo="dqn",
        device="cpu",
        num_envs=4,
        total_steps=96,
        evaluate_every=None,
        evaluate_episodes=4,
        env=EnvConfig(max_episode_steps=10),
        algorithm=DQNConfig(num_steps=2, learning_starts=50, batch_size=8, capacity=64),
    )


def test_gradient_steps_are_recorded(run, tmp_path):
    lockstep.train(run, run_dir=tmp_path / "run", profile=2)
    trace = json.loads(gzip.decompress((tmp_path / "run" / "profile.json.gz").read_bytes()))
    names = [event["name"] for event in trace["traceEvents"] if event["ph"] == "X"]
    assert names.count("act") == 2 * 2
    assert any("Backward" in name for name in names)


def test_updates_that_learn_nothing_are_counted(run):
    assert updates_before_learning(run) == 6  # the seventh has 56 steps
    assert updates_before_learning(override(run, {"learning_starts": 48})) == 5
    assert updates_before_learning(override(run, {"learning_starts": 0})) == 0
    assert updates_before_learning(run, done_steps=40) == 1
    assert updates_before_learning(run, done_steps=80) == 0
    assert updates_before_learning(override(run, {"checkpoint_replay": False}), done_steps=80) == 6
    assert updates_before_learning(Run(task="CartPole-v1")) == 0


def test_a_run_too_short_for_them_is_refused(run):
    check_profile(3, run)
    with pytest.raises(ConfigError, match=r"makes 12 updates.*6 before them, until learning_starts.*total_steps=104"):
        check_profile(4, run)
