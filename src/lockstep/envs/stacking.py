"""Observations of several steps, joined: `env.frame_stack`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.envs.spec import EnvSpec
from lockstep.envs.state import EnvWrapper
from lockstep.envs.vector import Step, VectorEnv, has_agents
from lockstep.errors import ConfigError


def stacked_spec(spec: EnvSpec, count: int, task: str) -> EnvSpec:
    """The spec with `count` observations in one. Raises `ConfigError` for images."""
    if spec.has_images:
        raise ConfigError(
            f"env.frame_stack={count} is for vectors; task={task} observes images: leave it out (Atari: "
            "env.kwargs.stack_num)"
        )
    return replace(spec, observation_size=count * spec.observation_size)


class StackedEnv(EnvWrapper):
    """A `VectorEnv` whose observation is that of the last `count` steps, oldest first.

    Before the first step of an episode its first observation is repeated.
    """

    def __init__(self, env: VectorEnv, count: int, task: str) -> None:
        super().__init__(env, stacked_spec(env.spec, count, task))
        self._stack = np.zeros((env.num_envs, count, env.spec.observation_size), np.float32)
        self._resetting = np.zeros(env.num_envs, bool)

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Start new episodes everywhere."""
        self._stack[:] = self._env.reset(seeds)[:, None]
        self._resetting[:] = False
        return self._joined(self._stack)

    def step(self, action: np.ndarray) -> Step:
        """Step every environment once."""
        observation, reward, terminated, truncated, final = self._env.step(action)
        ended = terminated | truncated
        first = ended if final is not None else self._resetting
        if has_agents(self._env):
            first = first | self._env.waiting()
        older = self._stack[:, 1:]
        joined_final = None if final is None else self._joined(np.concatenate([older, final[:, None]], 1))
        self._stack = np.concatenate([older, observation[:, None]], 1)
        self._stack[first] = observation[first, None]
        self._resetting = ended.copy()
        return self._joined(self._stack), reward, terminated, truncated, joined_final

    def _joined(self, stack: np.ndarray) -> np.ndarray:
        return stack.reshape(self.num_envs, -1).copy()

    def state(self) -> dict[str, Any]:
        """The complete state."""
        return {"environments": super().state(), "stack": self._stack, "resetting": self._resetting}

    def restore(self, state: dict[str, Any]) -> None:
        """Load `state()`."""
        super().restore(state["environments"])
        self._stack[:], self._resetting[:] = state["stack"], state["resetting"]
