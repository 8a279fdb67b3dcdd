"""A run that starts from a policy which observed other groups, of the same sizes."""

import shutil

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import lockstep
from lockstep.config.env import EnvConfig
from lockstep.run import NetworkConfig, Run
from lockstep.session.start_policy_notes import notes_on_groups
from lockstep.session.which_policy import find_policy


class Goal(gymnasium.Env):
    """Two groups of one number each; an episode is one step."""

    observation_space = spaces.Dict({name: spaces.Box(-1, 1, (1,), np.float32) for name in ("goal", "place")})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observed(), {}

    def step(self, action):
        return self.observed(), 0.0, True, False, {}

    def observed(self):
        return {"goal": np.ones(1, np.float32), "place": np.zeros(1, np.float32)}


class Other(Goal):
    """Another task."""


def run_of(task="Goal", **env):
    return Run(
        task=f"{__name__}:{task}", num_envs=4, total_steps=512, evaluate_episodes=1,
        network=NetworkConfig(hidden=(4,)), env=EnvConfig(vectorization="sync", **env),
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("run") / "run"
    lockstep.train(run_of(policy_keys=("goal", "place")), run_dir=run_dir)
    return run_dir


def test_another_order_of_groups_is_told_when_a_run_starts_from_a_policy(trained, tmp_path, capfd):
    lockstep.train(run_of(policy_keys=("place", "goal")), run_dir=tmp_path / "other", init_from=trained)
    said = capfd.readouterr().out
    assert 'was trained with env.policy_keys=["goal", "place"], and this run has ["place", "goal"]: it observes' in said


def test_what_does_not_differ_is_not_told(trained, tmp_path):
    assert notes_on_groups(trained, find_policy(trained), run_of(policy_keys=("goal", "place"))) == []
    assert notes_on_groups(trained, find_policy(trained), run_of("Other", policy_keys=("place", "goal"))) == [], (
        "of another task"
    )
    shutil.copy(trained / "policy.safetensors", tmp_path)
    alone = tmp_path / "policy.safetensors"
    assert notes_on_groups(alone, find_policy(alone), run_of(policy_keys=("place", "goal"))) == [], (
        "its groups are not known"
    )


def test_other_groups_of_the_value_network_are_told(trained):
    (note,) = notes_on_groups(
        trained, find_policy(trained), run_of(policy_keys=("goal", "place"), critic_keys=("place",))
    )
    assert 'env.critic_keys=[], and this run has ["place"]' in note
