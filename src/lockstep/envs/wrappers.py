"""The user's Gymnasium wrappers, `env.wrappers`: load them, and refuse what cannot work with them."""

import inspect
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from lockstep.config.env import EnvConfig
from lockstep.envs.load import load_object
from lockstep.errors import ConfigError

Env = gymnasium.Env[Any, Any]

_OURS = {"TimeLimit": "env.max_episode_steps", "FrameStackObservation": "env.frame_stack"}
"""Wrappers with arguments, for which there are settings."""
_RUNNING: tuple[tuple[Any, str, str], ...] = (
    (NormalizeObservation, "normalize_observation=true", "fixed numbers"),
    (NormalizeReward, "normalize_return=true", "a fixed factor"),
)
"""Wrappers with running statistics, the setting of PPO to use instead, and what else a wrapper could use."""


def load_wrappers(config: EnvConfig) -> list[Callable[[Env], Env]]:
    """The wrappers of a config, innermost first. Raises `ConfigError` for one that needs arguments."""
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
    return loaded


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
