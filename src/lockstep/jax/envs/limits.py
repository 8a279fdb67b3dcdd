"""Limits that a run sets on the numbers of its environments, in JAX; see `lockstep.envs.limits`."""

import jax
import jax.numpy as jnp
from jax import Array

from lockstep.config.env import EnvConfig
from lockstep.envs.limits import limited_spec
from lockstep.jax.envs.interface import DeviceEnv, Seen, State, Transition


class LimitedEnv:
    """A `DeviceEnv` with limits."""

    def __init__(self, env: DeviceEnv, config: EnvConfig, task: str) -> None:
        self.spec = limited_spec(env.spec, config, task)
        self._env = env
        self._limit = config.clip_observation
        self.reset = env.reset

    def observe(self, state: State) -> Seen:
        """The observation of a state."""
        return self._clipped(self._env.observe(state))

    def step(self, state: State, action: Array, key: Array) -> Transition:
        """One step."""
        state, observation, reward, terminated, truncated = self._env.step(state, action, key)
        return state, self._clipped(observation), reward, terminated, truncated

    def _clipped(self, observation: Seen) -> Seen:
        limit = self._limit
        return observation if limit is None else jax.tree.map(lambda x: jnp.clip(x, -limit, limit), observation)
