"""The user's Gymnasium wrappers, `env.wrappers`: load them, and refuse what cannot work with them."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
from gymnasium.error import DependencyNotInstalled
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from lockstep.config.env import EnvConfig
from lockstep.envs.errors import describe_error
from lockstep.envs.load import load_object
from lockstep.errors import ConfigError, RunError

Env = gymnasium.Env[Any, Any]

_OURS = {"TimeLimit": "env.max_episode_steps", "FrameStackObservation": "env.frame_stack"}
"""Wrappers with arguments, for which there are settings."""
_RUNNING: tuple[tuple[Any, str, str], ...] = (
    (NormalizeObservation, "normalize_observation=true", "fixed numbers"),
    (NormalizeReward, "normalize_return=true", "a fixed factor"),
)
"""Wrappers with running statistics, the setting of PPO to use instead, and what else a wrapper could use."""


def load_wrappers(config: EnvConfig) -> list[Callable[[Env], Env]]:
    """The wrappers of a config, innermost first. They raise a `ConfigError` that names them where they fail.

    Raises:
        ConfigError: one needs arguments.
    """
    loaded = [load_object(path, "env.wrappers") for path in config.wrappers]
    for path, wrapper in zip(config.wrappers, loaded, strict=True):
        missing = _missing_arguments(wrapper)
        if missing:
            ours = _OURS.get(getattr(wrapper, "__name__", ""))
            way_out = f"use {ours}" if ours else "name a function of your own that gives them, file.py:wrap"
            raise ConfigError(
                f"env.wrappers={path} needs the arguments {', '.join(missing)}, and a wrapper is called with the "
                f"environment alone; {way_out}"
            )
    return [partial(_wrap, wrapper, path) for path, wrapper in zip(config.wrappers, loaded, strict=True)]


def _wrap(wrapper: Callable[[Env], Env | None], path: str, env: Env) -> Env:
    """The environment in a wrapper of the setting."""
    try:
        wrapped = wrapper(env)
    except (ConfigError, RunError, ModuleNotFoundError, DependencyNotInstalled):  # these say what is missing
        raise
    except Exception as error:
        raise ConfigError(
            f"env.wrappers: {path} failed: {describe_error(error)}; a wrapper is called with the environment alone: "
            "what else it needs, a function of your own can give (file.py:wrap)"
        ) from error
    if wrapped is None:
        raise ConfigError(f"env.wrappers: {path} returned None; return the wrapped environment")
    return wrapped


def _missing_arguments(wrapper: Any) -> list[str]:
    """Names of the arguments that a wrapper requires besides the environment."""
    try:
        parameters = inspect.signature(wrapper).parameters.values()
    except (TypeError, ValueError):  # no signature available, or not callable; the call itself will fail
        return []
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    first = next((p for p in required if p.kind is not p.KEYWORD_ONLY), None)
    return [p.name for p in required if p is not first]


def refuse_running_statistics(env: Env, task: Env) -> None:
    """Raise `ConfigError` if a wrapper around `task` updates statistics of its own.

    No other environment, rank, evaluation or policy file has them. Frozen ones (`update_running_mean = False`) pass.
    """
    layer: Any = env
    wrapper: Any = gymnasium.Wrapper  # generic and only partly typed
    while layer is not task and isinstance(layer, wrapper):
        for kind, setting, fixed in _RUNNING:
            if isinstance(layer, kind) and layer.update_running_mean:
                raise ConfigError(
                    f"env.wrappers: {type(layer).__name__} keeps running statistics in each environment for itself; no "
                    "other environment, rank, evaluation or policy file has them, so returns and evaluations would be "
                    f"wrong; use --set {setting} of PPO, or a wrapper of your own with {fixed}"
                )
        layer = layer.env
