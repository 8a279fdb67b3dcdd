"""`lockstep/Cartpole-v0` in JAX: Isaac Lab's `Isaac-Cartpole` without its simulator."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from lockstep.envs.cartpole_dynamics import (
    START,
    CartpoleDynamics,
    CartpoleState,
    cartpole_spec,
    reward_and_terminated,
)


class CartpoleEpisode(NamedTuple):
    """The state, and steps of the episode."""

    state: CartpoleState
    steps: Array


class Cartpole:
    """Balance a pole on a cart by pushing the cart; see `lockstep.envs.cartpole.Cartpole`."""

    on_device = True

    def __init__(
        self,
        *,
        cart_mass: float = 1.0,
        pole_mass: float = 1.0,
        pole_length: float = 1.0,
        max_episode_steps: int = 300,
    ) -> None:
        """Masses in kg, the whole length of the pole in m."""
        self.spec = cartpole_spec(max_episode_steps, separately_seedable=True)
        self._dynamics = CartpoleDynamics(cart_mass, pole_mass, pole_length)
        self._limit = max_episode_steps

    def reset(self, key: Array) -> CartpoleEpisode:
        """Uniform between -START and START."""
        high = jnp.array(START, jnp.float32)
        return CartpoleEpisode(
            CartpoleState(*jax.random.uniform(key, (4,), jnp.float32, -high, high)), jnp.zeros((), jnp.int32)
        )

    def observe(self, state: CartpoleEpisode) -> Array:
        """Position, angle, velocity, angular velocity."""
        return jnp.stack(state.state)

    def step(
        self, state: CartpoleEpisode, action: Array, key: Array
    ) -> tuple[CartpoleEpisode, Array, Array, Array, Array]:
        """One control step."""
        del key
        moved = CartpoleEpisode(self._dynamics.advance(jnp, state.state, action[0]), state.steps + 1)
        reward, terminated = reward_and_terminated(jnp, moved.state)
        return moved, self.observe(moved), reward, terminated, moved.steps >= self._limit
