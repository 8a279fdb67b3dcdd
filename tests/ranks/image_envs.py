"""A small task that is seen in pictures: what pixels, frames and replay need of an environment, in microseconds."""

from typing import ClassVar

import numpy as np

from lockstep.envs.numpy_env import NumpyEnv
from lockstep.envs.spec import ActionSpec, EnvSpec

SIZE, CELLS = 36, 9  # the smallest picture that the Nature network takes


class Dot(NumpyEnv):
    """Push a dot to the right end of a line. Two frames are shown, the one before an episode's first is black."""

    arrays: ClassVar[tuple[str, ...]] = ("_cell", "_frames")

    def __init__(self, num_envs, *, max_episode_steps=11):
        spec = EnvSpec(
            2 * SIZE * SIZE, ActionSpec("discrete", (3,)), "same_step", False,
            reward_threshold=0.7, max_episode_steps=max_episode_steps, image=(2, SIZE, SIZE), frames=2,
        )  # fmt: skip
        super().__init__(num_envs, spec)
        self._cell = np.zeros(num_envs, np.int64)
        self._frames = np.zeros((num_envs, 2, SIZE, SIZE), np.uint8)
        places = np.arange(SIZE) // (SIZE // CELLS)
        self._pictures = np.where(places == np.arange(CELLS)[:, None, None], np.uint8(255), np.uint8(8))
        self._pictures = np.repeat(self._pictures, SIZE, 1)

    def _begin(self, rows):
        self._cell[rows] = self._generator.integers(0, CELLS // 2, rows.size)
        self._frames[rows] = 0
        self._frames[rows, 1] = self._pictures[self._cell[rows]]

    def _advance(self, action):
        self._cell = np.clip(self._cell + action - 1, 0, CELLS - 1)
        self._frames[:, 0] = self._frames[:, 1]
        self._frames[:, 1] = self._pictures[self._cell]
        terminated = self._cell == CELLS - 1
        return terminated.astype(np.float32) - np.float32(0.02), terminated

    def _observe(self):
        return self._frames.copy()
