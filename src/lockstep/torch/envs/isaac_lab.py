"""Isaac Lab's tasks as environments on torch tensors.

Facts of Isaac Lab 3 that this file deals with: a process holds one simulator; reward and flags are live buffers; the
observation before a reset is `extras["final_obs"]`, only with `compute_final_obs` and only after a step in which an
episode ended; and the environment draws from the global generators of torch, numpy and Python.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.config import settings
from lockstep.config.env import EnvConfig
from lockstep.envs import isaac
from lockstep.envs.spec import EnvSpec
from lockstep.torch.envs.interface import Observation, TensorStep, TensorVectorEnv
from lockstep.torch.envs.isaac_camera import add_camera, picture
from lockstep.torch.envs.isaac_launch import open_task
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
    groups_of,
    image_bytes,
    image_shape,
    joined,
    observation_fields,
    only_image,
)
from lockstep.torch.envs.spec_cache import cached_spec
from lockstep.torch.envs.worker import WorkerEnv

_PRESETS = ("presets", "physics", "renderer")
_open: list["IsaacLabEnv"] = []
"""The environments of this process: at most one."""


def maker(task: str) -> Callable[..., TensorVectorEnv]:
    """What makes the environments of `task`: in this process, or in a worker if this process has a simulator."""
    task, _ = isaac.current_id(task)
    return functools.partial(_make, task)


def drawing_maker(task: str) -> Callable[..., TensorVectorEnv]:
    """What makes environments of `task` that can be drawn."""
    return functools.partial(maker(task), render=True)


def _make(
    task: str,
    *,
    num_envs: int,
    device: torch.device,
    policy_keys: Sequence[str] = (),
    critic_keys: Sequence[str] = (),
    render: bool = False,
    **kwargs: Any,
) -> TensorVectorEnv:
    if _open:
        config = EnvConfig(policy_keys=tuple(policy_keys), critic_keys=tuple(critic_keys), kwargs=kwargs)
        return WorkerEnv(task, config, num_envs, device, render=render)
    return IsaacLabEnv(
        task,
        num_envs=num_envs,
        device=device,
        policy_keys=policy_keys,
        critic_keys=critic_keys,
        render=render,
        **kwargs,
    )


class IsaacLabEnv:
    """The environments of one simulator, in this process.

    Args:
        task: an id of Isaac Lab.
        num_envs: B.
        device: of the simulation and of all tensors.
        policy_keys: groups of observations that the policy receives, in this order; empty: `policy`.
        critic_keys: groups that the value network receives; empty: `critic` if the task has such a group, else as the
            policy.
        max_episode_steps: limit of an episode; None: the task's.
        image_range: smallest and largest number of an image of floats, which is passed on as bytes; None: the bounds
            of its space.
        render: whether the first environment can be drawn.
        overrides: settings of the task's own configuration as nested mappings, as on Isaac Lab's command line without
            the leading `env.`; `presets`, `physics` and `renderer` choose its presets.

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
        self._stack = ExitStack()
        _open.append(self)
        try:
            with self._random.swapped_in(), quiet():
                opened = self._stack.enter_context(open_task(task, str(device), None, _overrides(overrides)))
                if render:
                    add_camera(task, opened.env_cfg)
                self._env = opened.make(num_envs=num_envs, seed=0, final_obs=True).unwrapped
            self._stack.callback(self._env.close)
            self.frames_per_second = 1.0 / self._env.step_dt
            if max_episode_steps is not None:
                self._env.cfg.episode_length_s = episode_seconds(max_episode_steps, self._env.step_dt)
            spaces = groups_of(self._env.single_observation_space)
            if not critic_keys and "critic" in spaces:
                critic_keys = ("critic",)
            self._policy, self._critic = chosen_groups(spaces, policy_keys or ("policy",), critic_keys)
            first = next(iter(self._policy.values()))
            self._range = float_image_range(self._policy, image_range)
            is_single = len(self._policy) == 1
            self._image = image_shape(first, floats=self._range is not None) if is_single else None
            self.spec = self._make_spec(spaces)
        except BaseException:
            self.close()
            raise

    def _make_spec(self, spaces: Mapping[str, Space]) -> EnvSpec:
        return EnvSpec(
            **observation_fields(spaces, self._policy, self._critic, self._image),
            action=action_spec(self._env.single_action_space),
            autoreset="same_step",
            separately_seedable=False,
            max_episode_steps=int(self._env.max_episode_length),
        )

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Start new episodes everywhere, all from the first seed."""
        seed = seeds[0] % 2**31
        with self._random.swapped_in():
            events: Any = getattr(self._env, "event_manager", None)  # a direct task need not have one
            if events is not None and "startup" in events.available_modes:
                # Friction, masses and the like were drawn when the simulation was made, with one seed for all shards.
                self._env.seed(seed)
                events.apply(mode="startup")
            groups, _ = self._env.reset(seed=seed)
        return self._observation(groups)

    def step(self, action: Tensor) -> TensorStep:
        """Step all environments."""
        action = env_action(self.spec.action, action)
        if self.spec.action.kind == "discrete":
            action = action.unsqueeze(1)
        with self._random.swapped_in():
            groups, reward, terminated, truncated, extras = self._env.step(action)
        # The key stays in the dictionary on later steps, with old rows.
        final = extras.pop("final_obs", None)
        return TensorStep(
            self._observation(groups),
            reward,
            *ends(self._env.cfg, terminated, truncated),
            None if final is None else self._observation(final),
        )

    def _observation(self, groups: Mapping[str, Any]) -> Observation:
        policy = joined(self._policy, groups) if self._image is None else only_image(self._policy, groups)
        if self._range is not None:
            policy = image_bytes(policy, *self._range)
        return Observation(policy, joined(self._critic, groups) if self._critic else None)

    def render(self) -> np.ndarray:
        """A picture of the first environment."""
        with self._random.swapped_in():
            return picture(self._env)

    def close(self) -> None:
        """Stop the simulator."""
        if self in _open:
            _open.remove(self)
            self._stack.close()


def env_spec(task: str, config: EnvConfig) -> EnvSpec:
    """The spec of `task`: from this process' simulator, from the cache of specs, or from a worker that makes one."""
    return cached_spec("isaaclab", task, config, lambda: WorkerEnv(task, config, 1, torch.device("cpu")))


def _overrides(overrides: Mapping[str, Any]) -> list[str]:
    """Overrides as on Isaac Lab's command line."""
    return [
        f"{name if name in _PRESETS else 'env.' + name}={settings.to_yaml(value).strip() if value is None else value}"
        for name, value in settings.leaves(overrides).items()
    ]
