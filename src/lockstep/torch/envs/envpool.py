"""EnvPool's environments: C++ on a pool of threads, with a numpy interface, given out as torch tensors.

Tensors, because tasks such as the robots of MuJoCo Playground have an observation of their own for the value network.
EnvPool takes seeds only when an environment is made, so a reset makes the environments again.
"""

import functools
import importlib
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from lockstep.config.env import EnvConfig
from lockstep.envs.load import near
from lockstep.envs.spec import EnvSpec
from lockstep.envs.vector import kwargs_of
from lockstep.errors import ConfigError
from lockstep.system.cores import usable_cores
from lockstep.torch.envs.interface import Observation, TensorStep, TensorVectorEnv
from lockstep.torch.envs.spaces import (
    action_spec,
    chosen_groups,
    image_shape,
    joined,
    observation_fields,
    only_image,
)
from lockstep.torch.envs.spec_cache import cached_spec
from lockstep.world import World

PREFIX = "envpool/"
_ONLY = "observation"
"""Name of the group of an observation that is no Dict."""
_SET_HERE = ("batch_size", "seed")
"""Options that decide which environments a step returns, and their seeds."""
_NO_LIMIT = 2**31 - 1
"""EnvPool's limit of the episodes of tasks without one."""


def maker(task: str) -> Callable[..., TensorVectorEnv]:
    """What makes the environments of `task`."""
    if find_spec("envpool") is None:
        raise ConfigError(f"task={task} is EnvPool's, which is not installed: pip install 'lockstep-rl[envpool]'")
    return functools.partial(EnvPoolEnv, task.removeprefix(PREFIX))


def env_spec(task: str, config: EnvConfig) -> EnvSpec:
    """The spec of `task`, from the cache or from an environment that is made and closed."""
    kwargs = kwargs_of(config)
    return cached_spec("envpool", task, config, lambda: maker(task)(num_envs=1, device=torch.device("cpu"), **kwargs))


class EnvPoolEnv:
    """The environments of one shard.

    Args:
        task: EnvPool's id.
        num_envs: B.
        device: of the tensors that are given out; EnvPool itself computes on CPUs.
        policy_keys: parts of a Dict observation that the policy receives; empty: `state` if there is one, else all.
        critic_keys: parts that the value network receives; empty: `privileged_state` if there is one.
        num_threads: of the pool; default: one for each core that this rank may use, at most B.
        options: of the task, as EnvPool's `make` takes them, for example `max_episode_steps`.
    """

    def __init__(
        self,
        task: str,
        *,
        num_envs: int,
        device: torch.device,
        policy_keys: Sequence[str] = (),
        critic_keys: Sequence[str] = (),
        num_threads: int | None = None,
        **options: Any,
    ) -> None:
        for name in set(options).intersection(_SET_HERE):
            raise ConfigError(f"env.kwargs {name}={options[name]} is set by Lockstep; remove it from env.kwargs")
        self.num_envs, self.device = num_envs, device
        self._task = task
        self._options = {**options, "num_threads": num_threads or min(num_envs, _cores_of_rank())}
        self._env: Any = None
        spec = self._find_spec()
        self._space: Any = spec.gymnasium_observation_space
        space = self._space
        spaces = _groups(space, space) if isinstance(space, gymnasium.spaces.Dict) else {_ONLY: space}
        policy_keys = policy_keys or (("state",) if "state" in spaces else tuple(spaces))
        critic_keys = critic_keys or (("privileged_state",) if "privileged_state" in spaces else ())
        self._policy, self._critic = chosen_groups(spaces, policy_keys, critic_keys)
        self._image = image_shape(next(iter(self._policy.values()))) if len(self._policy) == 1 else None
        self._action_dtype = spec.gymnasium_action_space.dtype
        limit = getattr(spec.config, "max_episode_steps", None)
        self.spec = EnvSpec(
            **observation_fields(spaces, self._policy, self._critic, self._image),
            action=action_spec(spec.gymnasium_action_space),
            autoreset="next_step",
            separately_seedable=True,
            reward_threshold=_finite(spec.reward_threshold),
            max_episode_steps=int(limit) if limit and limit < _NO_LIMIT else None,
        )

    def _find_spec(self) -> Any:
        """EnvPool's spec of the task with these options; no environment is made."""
        envpool: Any = importlib.import_module("envpool")
        known: list[str] = envpool.list_all_envs()
        if self._task not in known:
            raise ConfigError(f"{self._task} does not exist in the installed EnvPool{near(self._task, known)}")
        options = envpool.make_spec(self._task).config._fields
        for name in set(self._options).difference(options):
            raise ConfigError(f"env.kwargs {name} is no option of {self._task}{near(name, options)}")
        return envpool.make_spec(self._task, num_envs=self.num_envs, **self._options)

    def _make(self, seeds: Sequence[int]) -> Any:
        envpool: Any = importlib.import_module("envpool")
        seeds = [seed % 2**31 for seed in seeds]
        return envpool.make(self._task, env_type="gymnasium", num_envs=self.num_envs, seed=seeds, **self._options)

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Start new episodes, each environment from its own seed."""
        self.close()
        self._env = self._make(seeds)
        observation, _ = self._env.reset()
        return self._observation(observation)

    def step(self, action: Tensor) -> TensorStep:
        """Step all environments."""
        chosen = self.spec.action.for_env(action.numpy(force=True)).astype(self._action_dtype)
        observation, reward, terminated, truncated, _ = self._env.step(chosen)
        return TensorStep(
            self._observation(observation),
            self._tensor(reward).float(),
            self._tensor(terminated),
            self._tensor(truncated),
        )

    def _observation(self, value: Any) -> Observation:
        space = self._space
        groups = _groups(space, value) if isinstance(space, gymnasium.spaces.Dict) else {_ONLY: value}
        tensors = {name: self._tensor(groups[name]) for name in (*self._policy, *self._critic)}
        policy = joined(self._policy, tensors) if self._image is None else only_image(self._policy, tensors)
        return Observation(policy, joined(self._critic, tensors) if self._critic else None)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def close(self) -> None:
        """Free the pool; may be called twice."""
        if self._env is not None:
            self._env.close()


def _cores_of_rank() -> int:
    return max(usable_cores() // World.from_environment().local_size, 1)


def _groups(space: Any, value: Any, prefix: str = "") -> dict[str, Any]:
    """The leaves of a Dict of Dicts in the order of the space, by dotted name."""
    if not isinstance(space, gymnasium.spaces.Dict):
        return {prefix.rstrip("."): value}
    found: dict[str, Any] = {}
    for name in space:
        found |= _groups(space[name], value[name], f"{prefix}{name}.")
    return found


def _finite(number: Any) -> float | None:
    return float(number) if number is not None and np.isfinite(number) else None
