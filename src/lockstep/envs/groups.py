"""Groups of observations, the parts of a `Dict` observation, in the order that the settings name.

`env.policy_keys` are those of the policy, `env.critic_keys` those of the value network.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from lockstep.config.env import EnvConfig
from lockstep.envs.joined_groups import join_groups
from lockstep.envs.load import near
from lockstep.envs.spaces import flatten_observation, image_parts, image_shape, observation_size
from lockstep.envs.spec import ImagePart
from lockstep.envs.vector import GROUPS
from lockstep.errors import ConfigError

Env = gymnasium.Env[Any, Any]


class ObservationGroups(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A Gymnasium environment that observes some groups of a `Dict` observation: one group, or a tuple of several.

    An image for the policy and groups of the value network's own are one row of bytes, as in `joined_groups`.

    Args:
        env: the environment.
        policy_keys: groups of the policy, in this order; empty: all that `critic_keys` does not name, in the order of
            the space.
        critic_keys: groups of the value network, which follow those of the policy; empty: it receives the policy's.

    Attributes:
        critic_size: flat numbers of the value network's groups; None if it has none of its own.
        image: of the policy, in a row of bytes; None if observations are no such rows.
        image_parts: images among the policy's numbers.
        critic_image_parts: images among the numbers of the value network's groups.
        unused_groups: names of groups that no network receives.
    """

    def __init__(self, env: Env, policy_keys: Sequence[str], critic_keys: Sequence[str] = ()) -> None:
        super().__init__(env)
        space: Any = env.observation_space
        if not isinstance(space, spaces.Dict):
            setting, keys = ("policy_keys", policy_keys) if policy_keys else ("critic_keys", critic_keys)
            raise _no_groups(setting, keys, f"its observation space is {space}")
        groups = cast(dict[str, Any], space.spaces)
        _check_names("policy_keys", policy_keys, groups)
        _check_names("critic_keys", critic_keys, groups)
        policy_keys = tuple(policy_keys) or tuple(key for key in groups if key not in critic_keys)
        if not policy_keys:
            raise ConfigError(
                f"env.critic_keys={list(critic_keys)} are all groups of the task: choose those of the policy with "
                f"env.policy_keys={list(groups)[:1]}, say"
            )
        self.critic_size = self.image = None
        _check_numbers("policy_keys", policy_keys, groups)
        only_image = image_shape(groups[policy_keys[0]]) if len(policy_keys) == 1 else None
        self.image_parts = _image_parts(groups, policy_keys) if only_image is None else ()
        self.critic_image_parts = ()
        self._keys = policy_keys
        if critic_keys and tuple(critic_keys) != policy_keys:
            self.critic_size = _check_numbers("critic_keys", critic_keys, groups)
            self.critic_image_parts = _image_parts(groups, critic_keys)
            self.image = only_image
            self._keys = (*policy_keys, *critic_keys)
        self.unused_groups = tuple(key for key in groups if key not in self._keys)
        chosen = [groups[key] for key in self._keys]
        self.observation_space = chosen[0] if len(chosen) == 1 else spaces.Tuple(chosen)
        if self.image is not None:
            self._flatten = [flatten_observation(space) for space in (chosen[0], spaces.Tuple(chosen[1:]))]
            space: Any = self.observation_space
            self.observation_space = spaces.Box(0, 255, self._row(space.sample()).shape, np.uint8)

    def observation(self, observation: Any) -> Any:
        """The chosen groups."""
        chosen = tuple(observation[key] for key in self._keys)
        if self.image is not None:
            return self._row(chosen)
        return chosen[0] if len(chosen) == 1 else chosen

    @property
    def named_space(self) -> Any:
        """The observation space with groups by their names, for messages; rows of bytes have none."""
        space: Any = self.observation_space
        if self.image is not None:
            return space
        parts = space.spaces if len(self._keys) > 1 else (space,)
        return spaces.Dict(list(zip(self._keys, parts, strict=True)))  # a list keeps its order

    def named(self, observation: Any) -> Any:
        """An observation as `named_space` has it, if it has as many parts."""
        if self.image is not None:
            return observation
        return dict(zip(self._keys, observation if len(self._keys) > 1 else (observation,), strict=True))

    def _row(self, chosen: tuple[Any, ...]) -> np.ndarray:
        """An image and the value network's groups as a row of bytes."""
        of_policy, of_critic = self._flatten
        return join_groups(of_policy(chosen[0]), of_critic(chosen[1:]))


def observation_fields(env: Env, task: str) -> dict[str, Any]:
    """The fields of an `EnvSpec` that the observations of an environment decide, by name."""
    space: Any = env.observation_space
    if not isinstance(env, ObservationGroups):
        parts = image_parts(space)
        return {"observation_size": observation_size(space, task), "image": image_shape(space), "image_parts": parts}
    size = observation_size(space, task) - (env.critic_size or 0)
    return {
        "observation_size": size if env.image is None else math.prod(env.image),
        "image": image_shape(space) if env.image is None else env.image,
        "image_parts": env.image_parts,
        "critic_size": env.critic_size,
        "critic_image_parts": env.critic_image_parts,
        "unused_groups": env.unused_groups,
    }


def _image_parts(groups: Mapping[str, Any], keys: Sequence[str]) -> tuple[ImagePart, ...]:
    return image_parts(spaces.Tuple([groups[key] for key in keys]))


def refuse_groups(config: EnvConfig, reason: str) -> None:
    """Refuse settings that choose groups of observations, for a task that has none."""
    for name in GROUPS:
        if getattr(config, name):
            raise _no_groups(name, getattr(config, name), reason)


def _no_groups(setting: str, keys: Sequence[str], reason: str) -> ConfigError:
    return ConfigError(
        f"env.{setting}={list(keys)} is for tasks whose observations have groups (Dict); {reason}: leave it out"
    )


def _check_names(setting: str, keys: Sequence[str], groups: Mapping[str, Any]) -> None:
    """Refuse groups that do not exist."""
    for key in keys:
        if key not in groups:
            raise ConfigError(
                f"env.{setting}={list(keys)}: there is no group {key!r} among {', '.join(groups)}"
                f"{near(key, list(groups))}"
            )


def _check_numbers(setting: str, keys: Sequence[str], groups: Mapping[str, Any]) -> int:
    """The flat numbers of groups; refuses those that have none, or no fixed length."""
    for key in keys:
        if not groups[key].is_np_flattenable:
            raise ConfigError(
                f"env.{setting}={list(keys)}: the group {key!r} is {groups[key]}, which has no fixed length; choose "
                "others, or make it a Box, Discrete, MultiBinary or MultiDiscrete, a Tuple or Dict of these"
            )
    size = sum(int(spaces.flatdim(groups[key])) for key in keys)
    if not size:
        of = {"policy_keys": "the policy", "critic_keys": "the value network"}[setting]
        raise ConfigError(f"env.{setting}={list(keys)}: these groups hold no numbers for {of}; choose others")
    return size
