"""What compiles before the first update is what the updates call."""

import numpy as np
import pytest

from lockstep.algorithms.ppo import PPOConfig
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.rollout import Rollout
from lockstep.run import NetworkConfig, Run
from lockstep.torch.comm import Comm
from lockstep.torch.networks import Policy
from lockstep.torch.ppo import PPO
from lockstep.world import World

STEPS, ENVS = 8, 4


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("settings", [{}, {"kl_reference": "previous_epoch"}])
def test_the_warm_up_has_the_columns_of_an_update(settings, monkeypatch):
    """Another column would be another graph: compiled a second time, within the first update."""
    config = PPOConfig(num_steps=STEPS, num_epochs=2, num_minibatches=2, **settings)
    run = Run(task="t", num_envs=ENVS, total_steps=1000, network=NetworkConfig(hidden=(8,)), algorithm=config)
    spec = EnvSpec(3, ActionSpec("continuous", (1,), (-1.0,), (1.0,)), "same_step", True)
    seen = []
    with Comm(World(), device="cpu") as comm:
        ppo = PPO(run, Policy(spec, run.network, seed=0), comm)
        backward = ppo._backward

        def recorded(k, parts):
            seen.append({name: tuple(column.shape) for part in parts for name, column in part.columns().items()})
            backward(k, parts)

        monkeypatch.setattr(ppo, "_backward", recorded)
        ppo.warmup_step(ppo.rows)()
        (warm_up,) = seen
        ends = np.zeros((STEPS, ENVS), bool)
        weight = np.ones((STEPS, ENVS), np.float32)
        reward = normal(STEPS, ENVS)
        rollout = Rollout(normal(STEPS + 1, ENVS, 3), normal(STEPS, ENVS, 1), reward, ends, ends, weight, [])
        ppo.update([rollout], np.zeros((1, 1)))
    assert seen[1:] == [warm_up] * 4
