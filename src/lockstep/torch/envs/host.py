"""Environments on torch tensors as a `VectorEnv` on the host: for evaluation, DQN, and checks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lockstep.config.env import EnvConfig
from lockstep.envs.vector import Step
from lockstep.torch.envs.interface import (
    Observation,
    TensorVectorEnv,
    can_draw,
    can_save,
    check_observation_type,
    check_step_type,
    no_critic_observation,
    no_final_observation,
    overwritten_final_observation,
)
from lockstep.torch.envs.make import make_tensor_env
from lockstep.torch.envs.saved_tensors import to_arrays, to_tensors


class HostEnv:
    """A `TensorVectorEnv` with a numpy interface."""

    def __init__(self, env: TensorVectorEnv) -> None:
        self.spec, self.num_envs = env.spec, env.num_envs
        self.savable = can_save(env)
        self._env = env
        self._critic: tuple[np.ndarray, np.ndarray | None] = np.zeros((env.num_envs, 0), np.float32), None

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Start new episodes everywhere."""
        with torch.no_grad():
            first = self._env.reset(seeds)
        check_observation_type(first, "reset")
        self._keep_critic(first, None)
        return _array(first.policy)

    def step(self, action: np.ndarray) -> Step:
        """Step all environments.

        Raises:
            RunError: an episode was truncated without its final observation, or it is no `TensorStep`.
        """
        with torch.no_grad():
            step = self._env.step(torch.from_numpy(np.ascontiguousarray(action)).to(self._env.device))
        check_step_type(step)
        if self.spec.autoreset == "same_step" and bool((step.truncated & ~step.terminated).any()):
            if step.final is None:
                raise no_final_observation()
            # Copies share no memory: who calls this, as `lockstep check`, could not find it.
            if any(map(_same_memory, step.observation, step.final)):
                raise overwritten_final_observation()
        observation = _array(step.observation.policy)
        final = observation if step.final is None else _array(step.final.policy)
        self._keep_critic(step.observation, step.final)
        return (
            observation,
            _array(step.reward),
            _array(step.terminated),
            _array(step.truncated),
            final if self.spec.autoreset == "same_step" else None,
        )

    def critic_observation(self) -> tuple[np.ndarray, np.ndarray | None]:
        """See `lockstep.envs.vector.CriticEnv`."""
        return self._critic

    def _keep_critic(self, observation: Observation, final: Observation | None) -> None:
        """Keep the critic's own observations of a reset or step, if there are any; raises `RunError` without them."""
        if observation.critic is None:
            if self.spec.critic_size is not None:
                raise no_critic_observation(self.spec)
            return
        now = _array(observation.critic)
        last = now if final is None or final.critic is None else _array(final.critic)
        self._critic = now, last if self.spec.autoreset == "same_step" else None

    def state(self) -> dict[str, Any]:
        """The complete state."""
        assert can_save(self._env)
        return to_arrays(self._env.state())

    def restore(self, state: dict[str, Any]) -> None:
        """Load `state()`."""
        assert can_save(self._env)
        self._env.restore(to_tensors(state))

    @property
    def frames_per_second(self) -> float:
        """Of a video; only of environments made with `render`."""
        assert can_draw(self._env)
        return getattr(self._env, "frames_per_second", 30.0)

    def render(self) -> list[np.ndarray]:
        """A picture of the first environment; only of environments made with `render`."""
        assert can_draw(self._env)
        return [self._env.render()]

    def close(self) -> None:
        """Close the environments."""
        self._env.close()


_TRAINING_AIDS = ("episodic_life", "reward_clip")
"""Options of EnvPool's Atari games that make a learner's task easier and are no part of the game's score."""


def without_training_aids(task: str, config: EnvConfig) -> EnvConfig:
    """The config of whole games with their own score."""
    aids = {name: False for name in _TRAINING_AIDS if task.startswith("envpool/") and name in config.kwargs}
    return replace(config, kwargs={**config.kwargs, **aids}) if aids else config


def make(task: str, config: EnvConfig, num_envs: int, *, render: bool = False, training: bool = True) -> HostEnv:
    """The environments of a shard, on this process' GPU if it uses one, else on the CPU.

    `training=False` disables training aids.
    """
    config = config if training else without_training_aids(task, config)
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    return HostEnv(make_tensor_env(task, config, num_envs, device, render=render))


def _array(tensor: torch.Tensor) -> np.ndarray:
    """A copy on the host: `tensor` may be a live buffer."""
    return np.array(tensor.detach().cpu().numpy())


def _same_memory(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether two tensors begin at the same number in memory, as a buffer and a view of it do."""
    return one is not None and other is not None and one.numel() > 0 and one.data_ptr() == other.data_ptr()
