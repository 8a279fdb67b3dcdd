"""Limits that a run sets on the numbers of its environments: `env.clip_action` and `env.clip_observation`."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lockstep.config.env import EnvConfig
from lockstep.envs.spec import EnvSpec
from lockstep.envs.state import EnvWrapper
from lockstep.envs.vector import Step, VectorEnv, has_critic_observation
from lockstep.errors import ConfigError


def has_limits(config: EnvConfig) -> bool:
    """Whether the config limits actions or observations."""
    return config.clip_action is not None or config.clip_observation is not None


def without_limits(config: EnvConfig) -> EnvConfig:
    """The config of the unlimited environment."""
    return replace(config, clip_action=None, clip_observation=None)


def limited_spec(spec: EnvSpec, config: EnvConfig, task: str) -> EnvSpec:
    """The spec with the bounds of actions narrowed to `env.clip_action`, and the limit of observations.

    Whatever clips actions, or acts on observations that no environment has clipped, then follows it.

    Raises:
        ConfigError: a limit does not fit the task.
    """
    action_limit, observation_limit = config.clip_action, config.clip_observation
    if observation_limit is not None and spec.image is not None:
        raise ConfigError(
            f"env.clip_observation={observation_limit} is for vectors; task={task} observes images: leave it out"
        )
    if observation_limit is not None and math.isfinite(observation_limit):
        spec = replace(spec, clip_observation=observation_limit)
    if action_limit is None:
        return spec
    action = spec.action
    if action.kind != "continuous":
        raise ConfigError(
            f"env.clip_action={action_limit} is for continuous actions; those of task={task} are {action.kind}: "
            "leave it out"
        )
    low = tuple(max(bound, -action_limit) for bound in action.low)
    high = tuple(min(bound, action_limit) for bound in action.high)
    if any(smallest > largest for smallest, largest in zip(low, high, strict=True)):
        raise ConfigError(
            f"env.clip_action={action_limit} leaves no action of task={task}, whose bounds are {list(action.low)} and "
            f"{list(action.high)}; use a larger one"
        )
    return replace(spec, action=replace(action, low=low, high=high))


class LimitedEnv(EnvWrapper):
    """A `VectorEnv` with limits."""

    def __init__(self, env: VectorEnv, config: EnvConfig, task: str) -> None:
        super().__init__(env, limited_spec(env.spec, config, task))
        self._limit = config.clip_observation

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Start new episodes everywhere."""
        return self._clipped(self._env.reset(seeds))

    def step(self, action: np.ndarray) -> Step:
        """Step every environment once."""
        observation, reward, terminated, truncated, final = self._env.step(action)
        final = None if final is None else self._clipped(final)
        return self._clipped(observation), reward, terminated, truncated, final

    def critic_observation(self) -> tuple[np.ndarray, np.ndarray | None]:
        """See `lockstep.envs.vector.CriticEnv`."""
        assert has_critic_observation(self._env)
        observation, final = self._env.critic_observation()
        return self._clipped(observation), None if final is None else self._clipped(final)

    def _clipped(self, observation: np.ndarray) -> np.ndarray:
        return observation if self._limit is None else np.clip(observation, -self._limit, self._limit)
