"""`jax/CartPole-v1`: Gymnasium's CartPole-v1, step for step, on the device.

The equations are those of Barto, Sutton and Anderson (1983) in the form of Florian (2007), with Gymnasium's constants
and its explicit Euler integration. Gymnasium computes in float64 and returns float32; this computes in float32.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError

_GRAVITY = 9.8
_CART_MASS, _POLE_MASS = 1.0, 0.1
_MASS = _CART_MASS + _POLE_MASS
_HALF_LENGTH = 0.5
_POLE_MOMENT = _POLE_MASS * _HALF_LENGTH
_FORCE = 10.0
_TIME_STEP = 0.02
_MAX_POSITION = 2.4
_MAX_ANGLE = 12 * 2 * math.pi / 360
_START = 0.05


class CartPoleState(NamedTuple):
    """Positions, velocities and steps of the episode."""

    position: Array
    velocity: Array
    angle: Array
    spin: Array
    steps: Array


class CartPole:
    """Keep a pole upright by pushing its cart to the left (0) or to the right (1).

    A reward of 1 for every step. The episode terminates when the cart leaves [-2.4, 2.4] or the pole leans by more than
    12 degrees, and is truncated after 500 steps.
    """

    on_device = True

    def __init__(self, *, max_episode_steps: int = 500) -> None:
        if max_episode_steps < 1:
            raise ConfigError(f"max_episode_steps={max_episode_steps} must be at least 1")
        self.spec = EnvSpec(
            observation_size=4,
            action=ActionSpec("discrete", (2,)),
            autoreset="same_step",
            separately_seedable=True,
            reward_threshold=475.0,
            max_episode_steps=max_episode_steps,
        )
        self._limit = max_episode_steps

    def reset(self, key: Array) -> CartPoleState:
        """Uniform within 0.05 of 0."""
        position, velocity, angle, spin = jax.random.uniform(key, (4,), jnp.float32, -_START, _START)
        return CartPoleState(position, velocity, angle, spin, jnp.zeros((), jnp.int32))

    def observe(self, state: CartPoleState) -> Array:
        """Position, velocity, angle, angular velocity."""
        return jnp.stack(state[:4])

    def step(self, state: CartPoleState, action: Array, key: Array) -> tuple[CartPoleState, Array, Array, Array, Array]:
        """One step of 20 ms."""
        del key
        position, velocity, angle, spin, steps = state
        sine, cosine = jnp.sin(angle), jnp.cos(angle)
        force = jnp.where(action == 1, _FORCE, -_FORCE).astype(angle.dtype)
        push = (force + _POLE_MOMENT * jnp.square(spin) * sine) / _MASS
        spin_rate = (_GRAVITY * sine - cosine * push) / (
            _HALF_LENGTH * (4.0 / 3.0 - _POLE_MASS * jnp.square(cosine) / _MASS)
        )
        acceleration = push - _POLE_MOMENT * spin_rate * cosine / _MASS
        moved = CartPoleState(
            position + _TIME_STEP * velocity,
            velocity + _TIME_STEP * acceleration,
            angle + _TIME_STEP * spin,
            spin + _TIME_STEP * spin_rate,
            steps + 1,
        )
        terminated = (jnp.abs(moved.position) > _MAX_POSITION) | (jnp.abs(moved.angle) > _MAX_ANGLE)
        return moved, self.observe(moved), jnp.ones((), jnp.float32), terminated, moved.steps >= self._limit
