"""Environments with Isaac Lab's interface as rl_games and rsl_rl expect them, for tasks that are not Isaac Lab's."""

import importlib
from typing import Any

import gymnasium
import numpy as np
from torch import Tensor

from lockstep.errors import ConfigError


def rsl_rl_env(env: Any, clip_actions: float | None) -> Any:
    """The environment as an `rsl_rl.env.VecEnv`; continuous actions only."""
    space = env.unwrapped.single_action_space
    if not isinstance(space, gymnasium.spaces.Box):
        raise ConfigError(f"rsl_rl samples continuous actions only, and this task has {space}; use skrl or rl_games")
    base: Any = importlib.import_module("rsl_rl.env").VecEnv
    tensordict: Any = importlib.import_module("tensordict").TensorDict

    class VecEnv(base):
        def __init__(self) -> None:
            inner = env.unwrapped
            self.num_envs, self.device, self.cfg = inner.num_envs, inner.device, inner.cfg
            self.num_actions = gymnasium.spaces.flatdim(space)
            self.max_episode_length = inner.max_episode_length
            env.reset()

        @property
        def episode_length_buf(self) -> Tensor:
            return env.unwrapped.episode_length_buf

        @episode_length_buf.setter
        def episode_length_buf(self, value: Tensor) -> None:
            """Episodes of these tasks cannot begin in the middle: a random initial length changes nothing."""

        def get_observations(self) -> Any:
            return tensordict(env.unwrapped.obs_buf, batch_size=[self.num_envs])

        def step(self, actions: Tensor) -> Any:
            if clip_actions is not None:
                actions = actions.clamp(-clip_actions, clip_actions)
            observations, reward, terminated, truncated, extras = env.step(actions)
            extras["time_outs"] = truncated & ~terminated  # the library adds the value of the next state there
            ended = (terminated | truncated).long()
            return tensordict(observations, batch_size=[self.num_envs]), reward, ended, extras

    return VecEnv()


def rl_games_env(env: Any) -> Any:
    """The environment as an `IVecEnv` of rl_games."""
    base: Any = importlib.import_module("rl_games.common.ivecenv").IVecEnv
    inner = env.unwrapped

    class VecEnv(base):
        def get_env_info(self) -> dict[str, Any]:
            groups = inner.single_observation_space
            spaces = {"observation_space": groups["policy"], "action_space": _bounded(inner.single_action_space)}
            return spaces | ({"state_space": groups["critic"]} if "critic" in groups.spaces else {})

        def reset(self) -> dict[str, Tensor]:
            return _named(env.reset()[0])

        def step(self, actions: Tensor) -> Any:
            observations, reward, terminated, truncated, extras = env.step(actions)
            extras["time_outs"] = truncated & ~terminated  # the library adds the value of the next state there
            return _named(observations), reward, terminated | truncated, extras

    return VecEnv()


def _named(groups: dict[str, Tensor]) -> dict[str, Tensor]:
    """Observations by rl_games' names: `states` are for its central value function."""
    names = {"policy": "obs", "critic": "states"}
    return {names[name]: group for name, group in groups.items()}


def _bounded(space: Any) -> Any:
    """rl_games scales actions to the bounds of the space, which may be infinite here."""
    if not isinstance(space, gymnasium.spaces.Box):
        return space
    low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    return gymnasium.spaces.Box(np.nan_to_num(low, neginf=-1.0), np.nan_to_num(high, posinf=1.0), dtype=np.float32)
