"""The base class of built-in vectorized environments, with same-step autoreset."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError

numpy_spec = partial(EnvSpec, autoreset="same_step", separately_seedable=False)
"""The spec of a `NumpyEnv`."""


class NumpyEnv(ABC):
    """Environments in numpy arrays, one row each, `same_step` autoreset, one generator for all rows.

    Subclasses implement initial states, steps and observations.
    """

    arrays: ClassVar[tuple[str, ...]]
    """Names of the attributes with the state."""

    def __init__(self, num_envs: int, spec: EnvSpec) -> None:
        """`num_envs` environments; call `reset` first."""
        if spec.max_episode_steps is None or spec.max_episode_steps < 1:
            raise ConfigError(f"max_episode_steps={spec.max_episode_steps} must be at least 1")
        self.spec = spec
        self.num_envs = num_envs
        self._limit = spec.max_episode_steps
        self._steps = np.zeros(num_envs, np.int64)
        self._generator = np.random.default_rng(0)

    @abstractmethod
    def _begin(self, rows: np.ndarray) -> None:
        """Draw the first state of new episodes in `rows` (indices)."""

    @abstractmethod
    def _advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Step all rows; returns float32 reward and bool terminated."""

    @abstractmethod
    def _observe(self) -> np.ndarray:
        """A new array: float32 `[B, O]`, or bytes `[B, C, H, W]` of images."""

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Start new episodes everywhere; the first seed is used for all rows."""
        self._generator = np.random.default_rng(int(seeds[0]))
        self._steps[:] = 0
        self._begin(np.arange(self.num_envs))
        return self._observe()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Step every row; ended episodes are reset in the same step."""
        reward, terminated = self._advance(action)
        self._steps += 1
        truncated = self._steps >= self._limit
        observation = final = self._observe()
        ended = np.flatnonzero(terminated | truncated)
        if ended.size:
            self._steps[ended] = 0
            self._begin(ended)
            observation = self._observe()
        return observation, reward, terminated, truncated, final

    def state(self) -> dict[str, Any]:
        """The complete state."""
        arrays = {name: getattr(self, name).copy() for name in (*self.arrays, "_steps")}
        return {"generator": self._generator.bit_generator.state, **arrays}

    def restore(self, state: Mapping[str, Any]) -> np.ndarray:
        """Load `state()`; returns its observation."""
        self._generator.bit_generator.state = state["generator"]
        for name in (*self.arrays, "_steps"):
            getattr(self, name)[...] = state[name]
        return self._observe()

    def close(self) -> None:  # noqa: B027  # nothing to override
        """Nothing to free."""
