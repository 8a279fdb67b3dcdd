"""`lockstep/Cartpole-v0` in numpy: Isaac Lab's `Isaac-Cartpole` without its simulator."""

from typing import ClassVar

import numpy as np

from lockstep.envs.cartpole_dynamics import (
    START,
    CartpoleDynamics,
    CartpoleState,
    cartpole_spec,
    reward_and_terminated,
)
from lockstep.envs.numpy_env import NumpyEnv


class Cartpole(NumpyEnv):
    """Balance a pole on a cart by pushing the cart.

    The observation is cart position, pole angle (0 is upright; not wrapped), cart velocity, pole angular velocity. The
    action times 100 N, at most 400 N, pushes the cart for 1/60 s. The episode terminates when the cart leaves [-3, 3]
    and is truncated after 5 s. A perfect balance would return 5.
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
        super().__init__(num_envs, cartpole_spec(max_episode_steps, separately_seedable=False))
        self._dynamics = CartpoleDynamics(cart_mass, pole_mass, pole_length)
        self._state = np.zeros((4, num_envs), np.float32)
        """The rows are a `CartpoleState`."""

    def _begin(self, rows: np.ndarray) -> None:
        high = np.array(START)[:, None]
        self._state[:, rows] = self._generator.uniform(-high, high, (4, rows.size))

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        state = self._dynamics.advance(np, CartpoleState(*self._state), action[:, 0])
        np.stack(state, out=self._state)
        return reward_and_terminated(np, state)

    def _observe(self) -> np.ndarray:
        return np.array(self._state.T, order="C")  # a copy even of a single row
