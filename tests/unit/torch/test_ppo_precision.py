"""Before the first step the policy is the one that acted: its probability ratio is 1, in whatever precision."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "ranks"))
from running import small

from lockstep import World
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.rollout import Rollout
from lockstep.run import Run, override
from lockstep.torch.comm import Comm
from lockstep.torch.networks import Policy
from lockstep.torch.ppo import PPO

STEPS, ENVS, SIZE = 64, 8, 17  # SIZE numbers are observed, and as many chosen
SPEC = EnvSpec(SIZE, ActionSpec("continuous", (SIZE,), (-np.inf,) * SIZE, (np.inf,) * SIZE), "same_step", True)


def config(precision: str, **changes) -> Run:
    """Steps so small that they change nothing; what leaves 1 by more than 1e-3 is clipped, and counted."""
    base = {
        "num_envs": ENVS, "num_steps": STEPS, "num_epochs": 2, "num_minibatches": 4, "learning_rate": 1e-12,
        "learning_rate_schedule": "constant", "clip_range": 1e-3, "value_clip_range": 1e-3, "precision": precision,
        "network.hidden": [64, 64], "network.initial_log_std": -3.0,
    }  # fmt: skip
    return override(small("lockstep/Corridor-v0"), {**base, **changes})


def rollout(draw: np.random.Generator, mean) -> Rollout:
    """What a policy with these means does with random observations."""
    seen = draw.standard_normal((STEPS + 1, ENVS, SIZE), dtype=np.float32)
    noise = np.exp(-3.0) * draw.standard_normal((STEPS, ENVS, SIZE))
    action = (mean(seen[:-1].reshape(-1, SIZE)).reshape(STEPS, ENVS, SIZE) + noise).astype(np.float32)
    never = np.zeros((STEPS, ENVS), bool)
    reward = draw.standard_normal((STEPS, ENVS)).astype(np.float32)
    return Rollout(seen, action, reward, never, never, np.ones((STEPS, ENVS), np.float32), [])


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch's own compiler
@pytest.mark.parametrize(
    ("precision", "compiled"),
    [("float32", False), ("bfloat16", False), pytest.param("bfloat16", True, marks=pytest.mark.slow)],
)
def test_the_ratio_before_the_first_step_is_1(precision, compiled):
    run = config(precision, compile=compiled)
    policy = Policy(SPEC, run.network, seed=0)
    with torch.no_grad():
        policy.network.actor.layers[-1].weight.mul_(100.0)  # means as large as those of a policy that has learned
    with Comm(World(), device="cpu") as comm, torch.no_grad():
        acted = rollout(np.random.default_rng(0), lambda seen: policy(torch.from_numpy(seen))[0].numpy())
        with torch.enable_grad():
            (ppo := PPO(run, policy, comm)).update([acted], np.zeros((1, 1)))
    told = ppo.metrics.read()
    assert told["policy/clip_fraction"] == 0.0, "a ratio is further from 1 than 1e-3 before any step"
    assert abs(told["policy/kl"]) < 1e-6
