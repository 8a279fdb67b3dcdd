"""Limits of actions and observations that a run sets for its environments, of environments in JAX."""

import numpy as np
import pytest

pytest.importorskip("jax")

from lockstep.config.env import EnvConfig
from lockstep.jax.envs.make import make_device_env
from lockstep.jax.envs.packed import PackedEnv, wrap_key


def test_limits_hold_for_environments_in_jax():
    config = EnvConfig(clip_observation=0.01, clip_action=0.5)
    env = PackedEnv(make_device_env("lockstep/Cartpole-v0", config))
    assert env.spec.action.high == (0.5,)
    state = env.reset(wrap_key(np.zeros(2, np.uint32)))
    _, observation, *_ = env.step(state, np.ones(1, np.float32), wrap_key(np.ones(2, np.uint32)))
    for seen in (env.observe(state), observation):
        assert abs(np.asarray(seen.policy)).max() == np.float32(0.01)
