"""Before the first step the policy is the one that acted: its probability ratio is 1, in whatever precision."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).parents[2] / "ranks"))
from running import small

from lockstep import World
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.rollout import Rollout
from lockstep.jax.comm import Comm
from lockstep.jax.flat import FlatParameters
from lockstep.jax.networks import Policy
from lockstep.jax.ppo import PPO
from lockstep.run import override

STEPS, ENVS, SIZE = 64, 8, 17  # SIZE numbers are observed, and as many chosen
SPEC = EnvSpec(SIZE, ActionSpec("continuous", (SIZE,), (-np.inf,) * SIZE, (np.inf,) * SIZE), "same_step", True)
# Steps so small that they change nothing; what leaves 1 by more than 1e-3 is clipped, and counted.
CHANGES = {
    "num_envs": ENVS, "num_steps": STEPS, "num_epochs": 2, "num_minibatches": 4, "learning_rate": 1e-12,
    "learning_rate_schedule": "constant", "clip_range": 1e-3, "value_clip_range": 1e-3,
    "network.hidden": [64, 64], "network.initial_log_std": -3.0,
}  # fmt: skip


def learned(run):
    """A policy whose means are as large as those of one that has learned."""
    policy, last = Policy(SPEC, run.network, seed=0), "network.actor.layers.2.weight"
    policy.params = {**policy.params, last: policy.params[last] * 100.0}
    return policy


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_ratio_before_the_first_step_is_1(precision):
    run = override(small("lockstep/Corridor-v0"), {**CHANGES, "precision": precision})
    policy, draw = learned(run), np.random.default_rng(0)
    seen = draw.standard_normal((STEPS + 1, ENVS, SIZE), dtype=np.float32)
    mean = np.asarray(policy.apply(policy.params, jnp.asarray(seen[:-1].reshape(-1, SIZE)))[0])
    noise = np.exp(-3.0) * draw.standard_normal((STEPS, ENVS, SIZE))
    action = (mean.reshape(STEPS, ENVS, SIZE) + noise).astype(np.float32)
    never, reward = np.zeros((STEPS, ENVS), bool), draw.standard_normal((STEPS, ENVS)).astype(np.float32)
    acted = Rollout(seen, action, reward, never, never, np.ones((STEPS, ENVS), np.float32), [])
    with Comm(World(), device="cpu") as comm:
        (ppo := PPO(run, policy, comm)).update([acted], np.zeros((1, 1)))
        told = ppo.read_metrics()
    assert told["policy/clip_fraction"] == 0.0, "a ratio is further from 1 than 1e-3 before any step"
    assert abs(told["policy/kl"]) < 1e-6


def test_every_program_rounds_alike():
    """With and without a gradient, of all rows at once and of parts: XLA fuses each of them in another way."""
    policy = learned(override(small("lockstep/Corridor-v0"), CHANGES))
    seen, noise = np.random.default_rng(0).standard_normal((2, 512, SIZE), dtype=np.float32)
    action = policy.apply(policy.params, seen)[0] + np.exp(-3.0) * noise

    flat = FlatParameters(policy.params)
    values = flat.join(policy.params)

    def log_prob(values, seen, action):
        params = flat.split(values)
        parameters, value = policy.apply(params, seen, "bfloat16")
        return policy.distribution.log_prob_and_entropy(params, parameters, action)[0], value

    def loss(*given):
        told, value = log_prob(*given)
        return told.sum() + value.sum(), told

    whole = jax.jit(log_prob)(values, seen, action)[0]
    parts = [slice(i, i + 128) for i in range(0, 512, 128)]
    others = {
        "parts": jnp.concatenate([jax.jit(log_prob)(values, seen[p], action[p])[0] for p in parts]),
        "gradient": jax.jit(jax.grad(loss, has_aux=True))(values, seen, action)[1],
    }
    for name, found in others.items():
        assert float(jnp.abs(found - whole).max()) < 1e-3, f"{name}: not the log-probabilities of other programs"
