"""`lockstep/PixelPong-v0` in numpy."""

from typing import ClassVar

import numpy as np

from lockstep.envs.numpy_env import NumpyEnv
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


class PixelPong(NumpyEnv):
    """Play a ball past an opponent, from pixels.

    The observation is four uint8 images, 0 or 255, the newest last. The player moves the paddle on the right: it
    stays (action 0), moves up (1) or down (2). The farther from the middle a paddle hits the ball, the more steeply it
    flies; the opponent follows it at a sixth of the player's speed, too slow for a steep ball. The reward is 1 when the
    opponent misses the ball and -1 when the player does. An episode terminates when either side has `points` and is
    truncated after `max_episode_steps`.
    """

    arrays: ClassVar[tuple[str, ...]] = ("_state", "_seen")
    frames_per_second = 30.0
    """Of a video."""

    def __init__(self, num_envs: int, *, size: int = 84, points: int = 5, max_episode_steps: int = 500) -> None:
        """`size` is the width and height of the images, which changes no rule of the game."""
        super().__init__(num_envs, pixel_pong_spec(size, points, max_episode_steps, separately_seedable=False))
        self._points = points
        self._centres = pixel_centres(size)
        self._state = np.zeros((len(PongState._fields), num_envs), np.int32)
        """The rows are a `PongState`."""
        self._seen = np.full((4, num_envs, FRAMES), NOWHERE, np.int32)
        """What the frames are drawn from, see `shown`."""

    def _begin(self, rows: np.ndarray) -> None:
        state = first_state(self._generator.integers(0, SEEDS, rows.size, np.int32))
        self._state[:, rows] = state
        self._seen[:, rows] = NOWHERE
        self._seen[:, rows, -1] = shown(state)

    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        state, reward = advance(np, PongState(*self._state), action.astype(np.int32))
        np.stack(state, out=self._state)
        self._seen = np.concatenate([self._seen[..., 1:], np.stack(shown(state))[..., None]], -1)
        return reward.astype(np.float32), (state.won >= self._points) | (state.lost >= self._points)

    def _observe(self) -> np.ndarray:
        return picture(np.uint8(255), self._centres, self._seen)

    def render(self) -> list[np.ndarray]:
        """The newest frame of each environment, uint8 [252, 252, 3]."""
        frames: np.ndarray = picture(np.uint8(255), pixel_centres(252), self._seen[..., -1])
        return [np.stack([frame] * 3, -1) for frame in frames]
