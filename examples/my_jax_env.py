"""An environment of your own in JAX: three pure functions of one environment, which run on the device with the update.

    lockstep check examples/my_jax_env.py:MyJaxEnv
    lockstep train examples/my_jax_env.py:MyJaxEnv --ml-framework jax --set num_envs=64 --set learning_rate=1e-3

The game is that of `my_env.py`: a ball falls down a board, straight, and a paddle at the bottom moves left, stays or
moves right. Catching the ball pays 1, missing it -1, and either ends the episode.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from lockstep.envs import ActionSpec, EnvSpec


class State(NamedTuple):
    """All that decides how a game continues: arrays whose shapes and types never change. Checkpoints keep it."""

    ball: Array
    paddle: Array
    row: Array


class MyJaxEnv:
    """One board. Lockstep maps these functions over all boards of a shard; `self` holds settings only, no arrays."""

    on_device = True

    def __init__(self, width: int = 5, height: int = 6) -> None:
        self.width, self.height = width, height
        self.spec = EnvSpec(
            observation_size=2,
            action=ActionSpec("discrete", (3,)),
            autoreset="same_step",  # these two hold for every environment on the device:
            separately_seedable=True,  # Lockstep begins the next episode, and gives each environment keys of its own
            reward_threshold=0.99,
            max_episode_steps=height,
        )

    def reset(self, key: Array) -> State:
        """A new game; all that is random comes from `key`."""
        ball = jax.random.randint(key, (), 0, self.width)
        return State(ball, jnp.asarray(self.width // 2), jnp.asarray(0))

    def observe(self, state: State) -> Array:
        """How far the ball is, and in which row."""
        return jnp.stack([(state.ball - state.paddle) / self.width, state.row / self.height])

    def step(self, state: State, action: Array, key: Array) -> tuple[State, Array, Array, Array, Array]:
        """Move the paddle, let the ball fall by one row. `jnp.where` decides, as `if` cannot in compiled code."""
        del key  # nothing is random here
        next_state = State(state.ball, jnp.clip(state.paddle + action - 1, 0, self.width - 1), state.row + 1)
        landed = next_state.row == self.height - 1
        reward = jnp.where(landed, jnp.where(next_state.ball == next_state.paddle, 1.0, -1.0), 0.0)
        return next_state, self.observe(next_state), reward, landed, jnp.asarray(False)
