"""`lockstep/PixelPong-v0` on torch tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.envs.pixel_pong_dynamics import (
    FRAMES,
    NOWHERE,
    SEEDS,
    PongState,
    advance,
    first_state,
    picture,
    pixel_centres,
    pixel_pong_spec,
    shown,
)
from lockstep.torch.envs.interface import Observation, TensorStep


class PixelPong:
    """Play a ball past an opponent, from pixels; see `lockstep.envs.pixel_pong.PixelPong`."""

    on_tensors = True
    capturable = True

    def __init__(
        self,
        num_envs: int,
        *,
        device: torch.device,
        size: int = 84,
        points: int = 5,
        max_episode_steps: int = 500,
    ) -> None:
        """`size` is the width and height of the images, which changes no rule of the game."""
        self.spec = pixel_pong_spec(size, points, max_episode_steps, separately_seedable=False)
        self.num_envs = num_envs
        self.device = device
        self._points = points
        self._limit = max_episode_steps
        self._centres = torch.from_numpy(pixel_centres(size)).to(device)
        self._white = torch.tensor(255, dtype=torch.uint8, device=device)
        self._generator = torch.Generator(device)
        self.generators = [self._generator]
        self._state = torch.zeros(len(PongState._fields), num_envs, dtype=torch.int32, device=device)
        """The rows are a `PongState`."""
        self._seen = torch.full((4, num_envs, FRAMES), NOWHERE, dtype=torch.int32, device=device)
        """What the frames are drawn from, see `shown`."""
        self._steps = torch.zeros(num_envs, dtype=torch.int32, device=device)

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Start new episodes everywhere; the first seed is used for all rows."""
        self._generator.manual_seed(int(seeds[0]))
        first, first_seen = self._begin()
        self._state.copy_(first)
        self._seen.copy_(first_seen)
        self._steps.zero_()
        return self._observe(self._seen)

    def step(self, action: Tensor) -> TensorStep:
        """Step every row; ended episodes are reset in the same step."""
        state, reward = advance(torch, PongState(*self._state.unbind()), action.int())
        seen = torch.cat([self._seen[..., 1:], torch.stack(shown(state)).unsqueeze(-1)], -1)
        terminated = (state.won >= self._points) | (state.lost >= self._points)
        self._steps += 1
        truncated = self._steps >= self._limit
        ended = terminated | truncated
        first, first_seen = self._begin()
        torch.where(ended, first, torch.stack(state), out=self._state)
        torch.where(ended.unsqueeze(-1), first_seen, seen, out=self._seen)
        self._steps *= ~ended
        final, observation = self._observe(seen), self._observe(self._seen)
        return TensorStep(observation, reward.float(), terminated, truncated, final)

    def _begin(self) -> tuple[Tensor, Tensor]:
        """New episodes for all rows: which ones are needed is known on the device only."""
        number = torch.randint(SEEDS, (self.num_envs,), generator=self._generator, device=self.device)
        state = first_state(number.int())
        seen = torch.full_like(self._seen, NOWHERE)
        seen[..., -1] = torch.stack(shown(state))
        return torch.stack(state), seen

    def _observe(self, seen: Tensor) -> Observation:
        return Observation(picture(self._white, self._centres, seen))

    def state(self) -> dict[str, Any]:
        """The complete state."""
        return {
            "generator": self._generator.get_state(),
            "state": self._state,
            "seen": self._seen,
            "steps": self._steps,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load `state()`."""
        self._generator.set_state(state["generator"])
        self._state.copy_(state["state"])
        self._seen.copy_(state["seen"])
        self._steps.copy_(state["steps"])

    def close(self) -> None:
        """Nothing to free."""
