"""`lockstep/Cartpole-v0`: the cart-pole MDP of Isaac Lab's `Isaac-Cartpole-v0`, without its simulator.

Observation, action, resets, reward terms and weights, termination, episode length and control rate follow Isaac Lab's
`isaaclab_tasks/manager_based/classic/cartpole/cartpole_env_cfg.py`; effort limit, joint damping and velocity limits its
`isaaclab_assets/robots/cartpole.py` (https://github.com/isaac-sim/IsaacLab). Masses and lengths are in a file outside
that repository; the defaults here are a cart of 1 kg and a uniform rod of 1 kg and 1 m, all keyword arguments.
"""

import math
from typing import ClassVar

import numpy as np

from lockstep.envs.numpy_env import NumpyEnv
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError

_PHYSICS_STEP = 1 / 120
_SUBSTEPS = 2
_CONTROL_STEP = _PHYSICS_STEP * _SUBSTEPS
_ACTION_SCALE = 100.0  # newtons per unit of action
_EFFORT_LIMIT = 400.0
_VELOCITY_LIMIT = 100.0
_CART_DAMPING = 10.0
_GRAVITY = 9.81
_CART_BOUND = 3.0


class Cartpole(NumpyEnv):
    """Balance a pole on a cart by pushing the cart.

    The observation is cart position, pole angle (0 is upright; not wrapped), cart velocity, pole angular velocity. The
    action times 100 N, at most 400 N, pushes the cart for 1/60 s: two semi-implicit Euler steps. The episode terminates
    when the cart leaves [-3, 3] and is truncated after 5 s. A perfect balance would return 5.
    """

    arrays: ClassVar[tuple[str, ...]] = ("_state",)

    def __init__(
        self,
        num_envs: int,
        *,
        cart_mass: float = 1.0,
        pole_mass: float = 1.0,
        pole_length: float = 1.0,
        max_episode_steps: int = 300,
    ) -> None:
        """Masses in kg, the whole length of the pole in m."""
        for name, value in (("cart_mass", cart_mass), ("pole_mass", pole_mass), ("pole_length", pole_length)):
            if not 0 < value < math.inf:
                raise ConfigError(f"env.kwargs {name}={value} must be greater than 0")
        spec = EnvSpec(
            observation_size=4,
            action=ActionSpec("continuous", (1,), (-math.inf,), (math.inf,)),
            autoreset="same_step",
            separately_seedable=False,
            reward_threshold=4.75,  # ours: a tuned linear feedback returns 4.97, doing nothing -22
            max_episode_steps=max_episode_steps,
        )
        super().__init__(num_envs, spec)
        self._mass = cart_mass + pole_mass
        self._pole_share = pole_mass / self._mass
        self._half_length = pole_length / 2
        self._state = np.zeros((4, num_envs), np.float32)
        """Cart position, pole angle, cart velocity, pole angular velocity."""

    def _begin(self, rows: np.ndarray) -> None:
        high = np.array([1.0, math.pi / 4, 0.5, math.pi / 4])[:, None]
        self._state[:, rows] = self._generator.uniform(-high, high, (4, rows.size))

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        effort = np.clip(_ACTION_SCALE * action[:, 0], -_EFFORT_LIMIT, _EFFORT_LIMIT)
        for _ in range(_SUBSTEPS):
            self._integrate(effort)
        position, angle, velocity, spin = self._state
        terminated = np.abs(position) > _CART_BOUND
        wrapped = np.remainder(angle + math.pi, 2 * math.pi) - math.pi
        reward = np.where(terminated, np.float32(-2), np.float32(1))
        reward -= np.square(wrapped) + 0.01 * np.abs(velocity) + 0.005 * np.abs(spin)
        reward *= _CONTROL_STEP
        return reward, terminated

    def _integrate(self, effort: np.ndarray) -> None:
        """One physics step: a uniform rod on a cart with viscous friction (equations: Florian, 2007)."""
        position, angle, velocity, spin = self._state
        sine, cosine = np.sin(angle), np.cos(angle)
        push = (
            effort - _CART_DAMPING * velocity
        ) / self._mass + self._pole_share * self._half_length * spin * spin * sine
        spin_rate = (_GRAVITY * sine - cosine * push) / (
            self._half_length * (4 / 3 - self._pole_share * cosine * cosine)
        )
        acceleration = push - self._pole_share * self._half_length * spin_rate * cosine
        velocity += _PHYSICS_STEP * acceleration
        spin += _PHYSICS_STEP * spin_rate
        np.clip(self._state[2:], -_VELOCITY_LIMIT, _VELOCITY_LIMIT, out=self._state[2:])
        position += _PHYSICS_STEP * velocity
        angle += _PHYSICS_STEP * spin

    def _observe(self) -> np.ndarray:
        return np.array(self._state.T, order="C")  # a copy even of a single row
