"""Limits that a run sets on the numbers of its environments, on torch tensors; see `lockstep.envs.limits`."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.config.env import EnvConfig
from lockstep.envs.limits import limited_spec
from lockstep.torch.envs.capturable import can_capture
from lockstep.torch.envs.interface import Observation, TensorStep, TensorVectorEnv, can_save


class LimitedEnv:
    """A `TensorVectorEnv` with limits; those of observations hold for the critic's too."""

    def __init__(self, env: TensorVectorEnv, config: EnvConfig, task: str) -> None:
        self.spec = limited_spec(env.spec, config, task)
        self.num_envs = env.num_envs
        self.device = env.device
        self.savable = can_save(env)
        self.capturable = can_capture(env)
        self.generators: Sequence[torch.Generator] = env.generators if can_capture(env) else ()
        self._env = env
        self._limit = config.clip_observation

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Start new episodes everywhere."""
        return self._clipped(self._env.reset(seeds))

    def step(self, action: Tensor) -> TensorStep:
        """Step every environment once."""
        step = self._env.step(action)
        final = None if step.final is None else self._clipped(step.final)
        return step._replace(observation=self._clipped(step.observation), final=final)

    def _clipped(self, observation: Observation) -> Observation:
        limit = self._limit
        return observation if limit is None else observation.map(lambda part: part.clamp(-limit, limit))

    def state(self) -> dict[str, Any]:
        """The complete state."""
        assert can_save(self._env)
        return self._env.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load `state()`."""
        assert can_save(self._env)
        self._env.restore(state)

    def close(self) -> None:
        """Close the environments."""
        self._env.close()
