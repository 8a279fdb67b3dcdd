"""`reward_scale` multiplies what PPO learns from, and nothing else."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "ranks"))
from ppo_seams import config
from seam_world import make_rollout
from torch_seams import ppo_learner

from lockstep import World
from lockstep.algorithms.ppo import PPOConfig
from lockstep.errors import ConfigError


@pytest.mark.parametrize("value", [0.0, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["reward_scale", "learning_rate", "adam_eps", "desired_kl"])
def test_positive_settings(name, value):
    with pytest.raises(ConfigError, match=f"{name}={value} must be greater than 0, and finite"):
        PPOConfig(**{name: value})


def test_reward_scale_learns_as_from_scaled_rewards():
    found = []
    for scale in (1.0, 0.25):
        run = config(num_envs=4, normalize_return=True, reward_scale=scale)
        with ppo_learner(World(), run) as ppo:
            for _ in range(2):
                rollout = make_rollout(0)
                rollout.reward *= np.float32(0.25 / scale)
                ppo.update([rollout], np.zeros((1, 1)))
            found.append((ppo.flat.params.detach().clone(), float(ppo.normalizers.returns.variance[0])))
    assert (found[0][0] == found[1][0]).all()
    assert found[0][1] == found[1][1]
