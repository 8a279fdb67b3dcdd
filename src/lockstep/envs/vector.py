"""The protocol of vectorized environments, and the built-in tasks."""

import inspect
import re
from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard

import numpy as np

from lockstep.config.env import EnvConfig
from lockstep.envs.load import near
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError

Step = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]
"""Observation, reward, terminated, truncated, final observation; see `VectorEnv.step`."""

BUILT_IN = {
    "lockstep/Cartpole-v0": ("lockstep.envs.cartpole", "Cartpole"),
    "lockstep/PixelPong-v0": ("lockstep.envs.pixel_pong", "PixelPong"),
    "lockstep/HiddenCartpole-v0": ("lockstep.envs.hidden_cartpole", "HiddenCartpole"),
    "lockstep/Corridor-v0": ("lockstep.envs.toy_tasks", "Corridor"),
    "lockstep/Match-v0": ("lockstep.envs.toy_tasks", "Match"),
    "lockstep/Reach-v0": ("lockstep.envs.toy_tasks", "Reach"),
    "lockstep/RememberCue-v0": ("lockstep.envs.toy_tasks", "RememberCue"),
}
"""Classes of the built-in tasks, which need only numpy."""


SETTINGS = ("max_episode_steps", "policy_keys", "critic_keys")
"""Settings of environments that are passed to a class as keyword arguments."""
GROUPS = ("policy_keys", "critic_keys")
"""Those that choose groups of observations: only a class that names them takes them."""


class VectorEnv(Protocol):
    """The environments of one shard, stepped together.

    A user-defined class is constructed as `Class(num_envs=..., **kwargs)` and named as task `module:Class`.

    The methods `state` and `restore` are optional (`lockstep.envs.state.SavableEnv`). With them a resumed run ends with
    the same bits as an uninterrupted one; without them it starts new episodes.

    The method `render` is optional, too: a list with a uint8 image [height, width, 3] of each environment, for
    videos of `frames_per_second` (default: 30).
    """

    spec: EnvSpec
    """Sizes and conventions of one environment."""
    num_envs: int
    """B."""

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Start new episodes everywhere.

        Args:
            seeds: one per environment; if they are not `separately_seedable`, only the first is used.

        Returns:
            First observations, float32 `[B, O]`, or bytes `[B, C, H, W]` where the spec has an image.
        """
        ...

    def step(self, action: np.ndarray) -> Step:
        """Step every environment once.

        The next call may overwrite the returned arrays, which need not be contiguous.

        Args:
            action: int64 `[B]` (discrete), int64 `[B, K]` (multi_discrete) or float32 `[B, D]` (continuous, in bounds).
                Choices are counted from 0.

        Returns:
            Observation float32 `[B, O]`, reward float32 `[B]`, terminated bool `[B]`, truncated bool `[B]`, and the
            final observation: `None` with `next_step` (the observation is the true one), else float32 `[B, O]`, valid
            in rows where an episode ended.
        """
        ...

    def close(self) -> None:
        """Free all resources; may be called twice."""
        ...


class CriticEnv(VectorEnv, Protocol):
    """A `VectorEnv` whose value network has an observation of its own; its spec has a `critic_size`."""

    def critic_observation(self) -> tuple[np.ndarray, np.ndarray | None]:
        """The value network's observations of the last `reset` or `step`, which the next call may overwrite.

        Returns:
            Observation float32 `[B, C]`, and the final one, as `step` returns those of the policy.
        """
        ...


class AgentsEnv(VectorEnv, Protocol):
    """A `VectorEnv` whose environments have several agents, each in a row of its own; autoreset is `same_step`.

    All rows of an environment are in one shard. An agent whose episode has ended waits for the others.
    """

    def waiting(self) -> np.ndarray:
        """Bool `[B]`: rows that took no part in the last step, and received no reward."""
        ...


def has_agents(env: VectorEnv) -> TypeGuard[AgentsEnv]:
    """Whether the environments of `env` have several agents."""
    return env.spec.num_agents > 1


def has_critic_observation(env: VectorEnv) -> TypeGuard[CriticEnv]:
    """Whether `env` gives the value network an observation of its own."""
    return env.spec.critic_size is not None and callable(getattr(env, "critic_observation", None))


def kwargs_of(config: EnvConfig) -> dict[str, Any]:
    """The keyword arguments of an environment class: `env.kwargs`, and the settings of `SETTINGS` that are set."""
    refuse_taken_kwargs(config)
    return dict(config.kwargs) | _given_settings(config)


def _given_settings(config: EnvConfig) -> dict[str, Any]:
    """The settings of `SETTINGS` that are set, by name."""
    chosen = {name: getattr(config, name) for name in SETTINGS}
    return {name: value for name, value in chosen.items() if value not in (None, ())}


def refuse_taken_kwargs(config: EnvConfig) -> None:
    """Refuse names under `env.kwargs` that Lockstep passes itself, or that a setting gives too."""
    kwargs = config.kwargs
    for name, advice in (("render_mode", "remove it from env.kwargs"), ("num_envs", "use num_envs")):
        if name in kwargs:
            raise ConfigError(f"env.kwargs {name}={kwargs[name]} is set by Lockstep; {advice}")
    for name, value in _given_settings(config).items():
        if name in kwargs:
            raise ConfigError(f"env.kwargs {name}={kwargs[name]}: env.{name}={value} is given, too; leave out one")


def not_made_error(task: str, error: Exception) -> ConfigError:
    """The error for an environment whose constructor raised one; says which setting gives a missing argument."""
    return ConfigError(f"task={task} could not be made: {type(error).__name__}: {error}{argument_hint(error)}")


def argument_hint(error: Exception) -> str:
    """What to do about arguments that a constructor lacks or does not take; empty for other errors."""
    said = str(error)
    if not isinstance(error, TypeError):
        return ""
    if "unexpected keyword argument 'render_mode'" in said:
        return "; pictures need an __init__ that takes render_mode='rgb_array', and a method render that draws one"
    missing = re.findall(r"'(\w+)'", said) if " required " in said else []
    return "; give it by " + " ".join(f"--set env.kwargs.{name}=VALUE" for name in missing) if missing else ""


def refuse_single_env_settings(config: EnvConfig, reason: str) -> None:
    """Refuse wrappers, and vectorization of single environments, for the `reason` given in the error."""
    if config.wrappers or config.vectorization not in ("auto", "entry_point"):
        setting = (
            f"env.wrappers={list(config.wrappers)}" if config.wrappers else f"env.vectorization={config.vectorization}"
        )
        raise ConfigError(f"{setting} is for single Gymnasium environments; {reason}: remove it")


def refuse_numbers_of_actions(spec: EnvSpec, task: str) -> None:
    """Refuse `start` and `shape` of the action of a class that steps Lockstep's own actions, counted from 0 and flat.

    Its environments would not get what a player of the policy gives.
    """
    for name in ("start", "shape"):
        if value := getattr(spec.action, name):
            raise ConfigError(
                f"task={task}: spec.action has {name}={value}, which step would have to apply itself: it receives "
                f"choices counted from 0, and vectors; leave {name} out, and convert the action in step"
            )


def refuse_unknown_kwargs(creator: Any, config: EnvConfig, task: str, *, settings: bool) -> None:
    """Refuse keyword arguments that `creator` does not take; the error names those it takes.

    Args:
        creator: of the environments.
        config: of the environments.
        task: the task.
        settings: whether it takes the settings of `SETTINGS` as arguments; otherwise only `env.kwargs`.
    """
    try:
        parameters = inspect.signature(creator).parameters.values()
    except (TypeError, ValueError):  # no signature available; the call itself will fail
        return
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    known = [
        p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY and p.name not in ("num_envs", "render_mode")
    ]
    for name, value in (kwargs_of(config) if settings else config.kwargs).items():
        if name in known or (takes_all and name not in GROUPS):
            continue
        if name in SETTINGS and not settings:
            raise ConfigError(f"env.kwargs {name}={value}: use env.{name}")
        given = f"env.kwargs {name}" if name in config.kwargs else f"env.{name}"
        if name in GROUPS and getattr(creator, "on_tensors", False):
            raise ConfigError(
                f"{given}={list(value)}: {task} has no argument {name}, and gives the policy its group policy, the "
                "value network its group critic: leave it out"
            )
        if name in GROUPS:
            raise ConfigError(
                f"{given}={list(value)} is for tasks whose observations have groups; {task} has none: leave it out"
            )
        takes = ", ".join(known) or "no keyword arguments"
        own = "; let the class take it, and truncate there" if name in SETTINGS and ":" in task else ""
        raise ConfigError(f"{given}={value!r} is unknown to {task}{near(name, known)} (it takes {takes}){own}")
