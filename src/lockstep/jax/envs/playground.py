"""`playground/NAME`: MuJoCo Playground (Zakka et al., 2025, arXiv:2502.08844), which follows Brax's protocol."""

import importlib
from collections.abc import Callable
from typing import Any

from lockstep.envs.load import near
from lockstep.errors import ConfigError
from lockstep.jax.envs.brax_like import BraxLike

# By name: where it is not installed, this file can be checked nevertheless.
registry: Any = importlib.import_module("mujoco_playground").registry


def maker(name: str) -> Callable[..., BraxLike]:
    """What makes an environment of the playground; keyword arguments change its own config."""
    known = list(registry.ALL_ENVS)
    if name not in known:
        raise ConfigError(f"the playground has no environment {name}{near(name, known)}")
    config: Any = registry.get_default_config(name)

    def make(**kwargs: Any) -> BraxLike:
        limit = kwargs.pop("max_episode_steps", int(config.episode_length))
        # Their other implementation, Warp, has states that cannot be chosen between row by row.
        changes = {"impl": "jax"} if "impl" in config else {}
        return BraxLike(registry.load(name, config_overrides=changes | kwargs or None), limit)

    return make
