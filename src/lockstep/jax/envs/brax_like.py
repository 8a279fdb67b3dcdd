"""Environments with Brax's protocol: `reset(key)` and `step(state, action)`."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.jax.envs.interface import State


class BraxLike:
    """One environment; actions lie in [-1, 1]."""

    on_device = True

    def __init__(self, env: Any, max_episode_steps: int) -> None:
        size = env.observation_size
        if not isinstance(size, int):
            raise ConfigError(f"it observes {size}; one vector of numbers is needed")
        self._env, self._limit, self._size = env, max_episode_steps, env.action_size
        self.spec = EnvSpec(
            observation_size=size,
            action=ActionSpec("continuous", (self._size,), (-1.0,) * self._size, (1.0,) * self._size),
            autoreset="same_step",
            separately_seedable=True,
            max_episode_steps=max_episode_steps,
        )

    def reset(self, key: Array) -> State:
        """State of the simulation, and steps of the episode."""
        return self._env.reset(jax.random.key_data(key)), jnp.zeros((), jnp.int32)

    def observe(self, state: State) -> Array:
        """The observation in the state."""
        return state[0].obs

    def step(self, state: State, action: Array, key: Array) -> tuple[State, Array, Array, Array, Array]:
        """One step; its randomness comes from the state."""
        del key
        after, steps = self._env.step(state[0], action), state[1] + 1
        return (after, steps), after.obs, after.reward, after.done > 0, steps >= self._limit
