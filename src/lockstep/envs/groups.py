"""Groups of observations, the parts of a `Dict` observation, in the order that `env.policy_keys` names."""

from collections.abc import Sequence
from typing import Any, cast

import gymnasium
from gymnasium import spaces

from lockstep.envs.load import near
from lockstep.errors import ConfigError

Env = gymnasium.Env[Any, Any]


class ObservationGroups(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A Gymnasium environment that observes some groups of a `Dict` observation: one group, or a tuple of several.

    Args:
        env: the environment.
        keys: of the groups.
    """

    def __init__(self, env: Env, keys: Sequence[str]) -> None:
        super().__init__(env)
        space: Any = env.observation_space
        if not isinstance(space, spaces.Dict):
            raise no_groups(keys, f"its observation space is {space}")
        groups = cast(dict[str, Any], space.spaces)
        for key in keys:
            if key not in groups:
                raise ConfigError(
                    f"env.policy_keys={list(keys)}: there is no group {key}{near(key, list(groups))}; the task has "
                    f"{', '.join(groups)}"
                )
        self._keys = tuple(keys)
        chosen = [groups[key] for key in keys]
        self.observation_space = chosen[0] if len(chosen) == 1 else spaces.Tuple(chosen)

    def observation(self, observation: Any) -> Any:
        """The chosen groups."""
        chosen = tuple(observation[key] for key in self._keys)
        return chosen[0] if len(chosen) == 1 else chosen


def no_groups(keys: Sequence[str], reason: str, setting: str = "policy_keys") -> ConfigError:
    """The error for groups of a task that has none."""
    return ConfigError(
        f"env.{setting}={list(keys)} is for tasks whose observations have groups (Dict); {reason}: leave it out"
    )
