"""`lockstep/HiddenCartpole-v0`: Gymnasium's cart-pole without velocities in its observations."""

import math
from typing import ClassVar

import numpy as np

from lockstep.envs.numpy_env import NumpyEnv, numpy_spec
from lockstep.envs.spec import ActionSpec

_GRAVITY = 9.8
_CART_MASS, _POLE_MASS = 1.0, 0.1
_TOTAL_MASS = _CART_MASS + _POLE_MASS
_HALF_LENGTH = 0.5
_FORCE = 10.0
_STEP_S = 0.02
_POSITION_BOUND = 2.4
_ANGLE_BOUND = math.radians(12)
_START = 0.05


class HiddenCartpole(NumpyEnv):
    """Balance a pole on a cart of which only the positions are seen (discrete).

    The observation is cart position and pole angle, each in units of the bound at which the episode terminates. Action
    0 pushes left, 1 right. Each step pays 1. Dynamics, starts and bounds are those of `CartPole-v1` (Barto et al.,
    1983). There is no friction, and positions alone do not show how to damp the motion: a policy without memory returns
    less than 100 of 500.
    """

    arrays: ClassVar[tuple[str, ...]] = ("_state",)

    def __init__(self, num_envs: int, *, max_episode_steps: int = 500) -> None:
        """`max_episode_steps` is also the largest return."""
        spec = numpy_spec(
            observation_size=2,
            action=ActionSpec("discrete", (2,)),
            reward_threshold=0.95 * max_episode_steps,
            max_episode_steps=max_episode_steps,
        )
        super().__init__(num_envs, spec)
        self._state = np.zeros((4, num_envs))
        """Position, velocity, angle and angular velocity."""

    def _begin(self, rows: np.ndarray) -> None:
        self._state[:, rows] = self._generator.uniform(-_START, _START, (4, rows.size))

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        _, velocity, angle, spin = self._state
        sine, cosine = np.sin(angle), np.cos(angle)
        moment = _POLE_MASS * _HALF_LENGTH
        push = (_FORCE * (2 * action - 1) + moment * spin * spin * sine) / _TOTAL_MASS
        inertia = _HALF_LENGTH * (4 / 3 - _POLE_MASS * cosine * cosine / _TOTAL_MASS)
        spin_rate = (_GRAVITY * sine - cosine * push) / inertia
        acceleration = push - moment * spin_rate * cosine / _TOTAL_MASS
        rates = np.stack([velocity, acceleration, spin, spin_rate])
        self._state += _STEP_S * rates
        terminated = (np.abs(self._state[0]) > _POSITION_BOUND) | (np.abs(self._state[2]) > _ANGLE_BOUND)
        return np.ones(self.num_envs, np.float32), terminated

    def _observe(self) -> np.ndarray:
        scale = np.array([1 / _POSITION_BOUND, 1 / _ANGLE_BOUND])
        return (self._state[::2].T * scale).astype(np.float32)
