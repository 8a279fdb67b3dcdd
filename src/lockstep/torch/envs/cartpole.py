"""`lockstep/Cartpole-v0` on torch tensors: Isaac Lab's `Isaac-Cartpole` without its simulator."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.envs.cartpole_dynamics import (
    START,
    CartpoleDynamics,
    CartpoleState,
    cartpole_spec,
    reward_and_terminated,
)
from lockstep.torch.envs.interface import Observation, TensorStep


class Cartpole:
    """Balance a pole on a cart by pushing the cart; see `lockstep.envs.cartpole.Cartpole`."""

    on_tensors = True
    capturable = True

    def __init__(
        self,
        num_envs: int,
        *,
        device: torch.device,
        cart_mass: float = 1.0,
        pole_mass: float = 1.0,
        pole_length: float = 1.0,
        max_episode_steps: int = 300,
    ) -> None:
        """Masses in kg, the whole length of the pole in m."""
        self.spec = cartpole_spec(max_episode_steps, separately_seedable=False)
        self.num_envs = num_envs
        self.device = device
        self._dynamics = CartpoleDynamics(cart_mass, pole_mass, pole_length)
        self._limit = max_episode_steps
        self._generator = torch.Generator(device)
        self.generators = [self._generator]
        self._high = torch.tensor(START, device=device)[:, None]
        self._state = torch.zeros(4, num_envs, device=device)
        """The rows are a `CartpoleState`."""
        self._steps = torch.zeros(num_envs, dtype=torch.int32, device=device)

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Start new episodes everywhere; the first seed is used for all rows."""
        self._generator.manual_seed(int(seeds[0]))
        self._state.copy_(self._draw())
        self._steps.zero_()
        return Observation(self._state.T)

    def step(self, action: Tensor) -> TensorStep:
        """Step every row; ended episodes are reset in the same step."""
        state = self._dynamics.advance(torch, CartpoleState(*self._state.unbind()), action[:, 0])
        reward, terminated = reward_and_terminated(torch, state)
        self._steps += 1
        truncated = self._steps >= self._limit
        ended = terminated | truncated
        final = torch.stack(state)
        torch.where(ended, self._draw(), final, out=self._state)
        self._steps *= ~ended
        return TensorStep(Observation(self._state.T), reward, terminated, truncated, Observation(final.T))

    def _draw(self) -> Tensor:
        """First states of new episodes, for all rows: which ones are needed is known on the device only."""
        uniform = torch.rand(4, self.num_envs, generator=self._generator, device=self.device)
        return (2.0 * uniform - 1.0) * self._high

    def state(self) -> dict[str, Any]:
        """The complete state."""
        return {"generator": self._generator.get_state(), "state": self._state, "steps": self._steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load `state()`."""
        self._generator.set_state(state["generator"])
        self._state.copy_(state["state"])
        self._steps.copy_(state["steps"])

    def close(self) -> None:
        """Nothing to free."""
