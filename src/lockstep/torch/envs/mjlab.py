"""mjlab's tasks (MuJoCo-Warp) as environments on torch tensors.

mjlab resets in the same step and does not keep the observation before. With `auto_reset=False` it returns that
observation, and this adapter resets what has ended.
"""

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from torch import Tensor

from lockstep.config import settings
from lockstep.config.env import EnvConfig
from lockstep.envs.drawing import choose_mujoco_gl
from lockstep.envs.load import near
from lockstep.envs.spec import EnvSpec
from lockstep.envs.vector import kwargs_of
from lockstep.errors import ConfigError
from lockstep.torch.envs.interface import Observation, TensorStep, TensorVectorEnv
from lockstep.torch.envs.simulator_process import (
    GlobalRandomState,
    ends,
    episode_seconds,
    quiet,
    refuse_settings_of_the_run,
)
from lockstep.torch.envs.spaces import (
    Space,
    action_spec,
    chosen_groups,
    env_action,
    float_image_range,
    image_bytes,
    image_shape,
    joined,
    observation_fields,
    only_image,
)
from lockstep.torch.envs.spec_cache import cached_spec


def maker(task: str) -> Callable[..., TensorVectorEnv]:
    """What makes the environments of `task`."""
    if find_spec("mjlab") is None:
        raise ConfigError(f"task={task} is mjlab's, which is not installed: pip install 'lockstep-rl[mjlab]'")
    return functools.partial(MjlabEnv, task)


def drawing_maker(task: str) -> Callable[..., TensorVectorEnv]:
    """What makes environments of `task` that can be drawn."""
    return functools.partial(maker(task), render=True)


def env_spec(task: str, config: EnvConfig) -> EnvSpec:
    """The spec of `task`, from the cache or from an environment that is made and closed."""
    kwargs = kwargs_of(config)
    return cached_spec("mjlab", task, config, lambda: maker(task)(num_envs=1, device=torch.device("cpu"), **kwargs))


class MjlabEnv:
    """The environments of one shard.

    Args:
        task: an id of mjlab.
        num_envs: B.
        device: of the simulation and of all tensors.
        policy_keys: groups of observations that the policy receives; empty: `actor`.
        critic_keys: groups that the value network receives; empty: `critic`.
        max_episode_steps: truncates episodes here instead of at the task's own limit.
        image_range: smallest and largest number of an image, the policy's only group, which is passed on as bytes.
        render: whether the first environment can be drawn.
        overrides: fields of the task's own configuration as nested mappings.

    Attributes:
        frames_per_second: of a video.
    """

    def __init__(  # noqa: PLR0913  # one argument for each setting
        self,
        task: str,
        *,
        num_envs: int,
        device: torch.device,
        policy_keys: Sequence[str] = (),
        critic_keys: Sequence[str] = (),
        max_episode_steps: int | None = None,
        image_range: Sequence[float] | None = None,
        render: bool = False,
        **overrides: Any,
    ) -> None:
        refuse_settings_of_the_run(overrides)
        self.num_envs, self.device = num_envs, device
        self._random = GlobalRandomState()
        self._env: Any = None
        with self._random.swapped_in(), quiet():
            self._env = _start(task, num_envs, device, overrides, render=render)
        try:
            self.frames_per_second = 1.0 / self._env.step_dt
            if max_episode_steps is not None:
                self._env.cfg.episode_length_s = episode_seconds(max_episode_steps, self._env.step_dt)
            spaces = {
                name: _gymnasium_space(space) for name, space in self._env.single_observation_space.spaces.items()
            }
            self._policy, self._critic = chosen_groups(spaces, policy_keys or ("actor",), critic_keys or ("critic",))
            self._range = float_image_range(self._policy, image_range)
            image = None if self._range is None else image_shape(next(iter(self._policy.values())), floats=True)
            self.spec = EnvSpec(
                **observation_fields(spaces, self._policy, self._critic, image),
                action=action_spec(_gymnasium_space(self._env.single_action_space)),
                autoreset="same_step",
                separately_seedable=False,
                max_episode_steps=self._env.max_episode_length,
            )
        except BaseException:
            self.close()
            raise

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Start new episodes everywhere, all from the first seed."""
        with self._random.swapped_in(), quiet():
            self._env.seed(seeds[0] % 2**31)
            # Friction, masses and the like were drawn when the simulation was made, with one seed for all shards.
            if "startup" in self._env.event_manager.available_modes:
                self._env.event_manager.apply(mode="startup")
            groups, _ = self._env.reset()
        return self._observation(groups)

    def step(self, action: Tensor) -> TensorStep:
        """Step all environments, and reset those whose episode ended."""
        with self._random.swapped_in():
            groups, reward, terminated, truncated, _ = self._env.step(env_action(self.spec.action, action))
            # A reset overwrites the flags.
            terminated, truncated = terminated.clone(), truncated.clone()
            observation, final = self._observation(groups), None
            ended = terminated | truncated
            if ended.any():
                final = observation.map(torch.clone)
                groups, _ = self._env.reset(env_ids=ended.nonzero().flatten())
                # mjlab draws new noise for the other environments, too; they keep what their step gave.
                observation = self._observation(groups).map(torch.clone)
                for rows, of_step in zip(observation, final, strict=True):
                    if rows is not None and of_step is not None:
                        rows[~ended] = of_step[~ended]
        return TensorStep(observation, reward, *ends(self._env.cfg, terminated, truncated), final)

    def _observation(self, groups: Mapping[str, Any]) -> Observation:
        if self._range is None:
            policy = joined(self._policy, groups)
        else:
            policy = image_bytes(only_image(self._policy, groups), *self._range)
        return Observation(policy, joined(self._critic, groups) if self._critic else None)

    def render(self) -> np.ndarray:
        """A picture of the first environment, by the camera of the task's configuration."""
        with self._random.swapped_in():
            return self._env.render()

    def close(self) -> None:
        """Free the simulation."""
        if self._env is not None:
            self._env.close()
            self._env = None


def _start(task: str, num_envs: int, device: torch.device, overrides: Mapping[str, Any], *, render: bool) -> Any:
    importlib.import_module("mjlab.tasks")  # registers the tasks
    registry: Any = importlib.import_module("mjlab.tasks.registry")
    known: list[str] = registry.list_tasks()
    if task not in known:
        raise ConfigError(f"task={task} does not exist in the installed mjlab{near(task, known)}")
    config: Any = registry.load_env_cfg(task)
    for name, value in settings.leaves(overrides).items():
        _set_field(config, name, value)
    if getattr(config.commands.get("motion"), "motion_file", None) == "":
        raise ConfigError(
            f"task={task} follows a recorded motion; name its file: "
            "--set env.kwargs.commands.motion.motion_file=FILE.npz"
        )
    config.scene.num_envs = num_envs
    config.seed = 0
    config.auto_reset = False
    environments: Any = importlib.import_module("mjlab.envs")
    if render:
        choose_mujoco_gl()
    mode = "rgb_array" if render else None
    return environments.ManagerBasedRlEnv(cfg=config, device=str(device), render_mode=mode)


def _set_field(config: Any, name: str, value: Any) -> None:
    """Set a field of nested dataclasses and dictionaries by its dotted name."""
    *path, last = name.split(".")
    node: Any = config
    for part in path:
        node = _fields(node).get(part)
    known = _fields(node)
    if last not in known:
        raise ConfigError(
            f"env.kwargs {name}={value!r} is no field of the task's configuration{near(last, list(known))}"
        )
    if isinstance(node, dict):
        node[last] = value
    else:
        setattr(node, last, value)


def _fields(node: Any) -> dict[str, Any]:
    """The entries of a dictionary, or the fields of a dataclass."""
    if isinstance(node, dict):
        return cast("dict[str, Any]", node)
    return dict(getattr(node, "__dict__", {}))


def _gymnasium_space(space: Any) -> Space:
    """A space of mjlab, which has shapes and bounds only."""
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), space.shape) for bound in (space.low, space.high))
    return gymnasium.spaces.Box(low, high, space.shape, np.float32)
