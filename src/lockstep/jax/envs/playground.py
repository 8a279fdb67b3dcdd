"""`playground/NAME`: MuJoCo Playground (Zakka et al., 2025, arXiv:2502.08844), which follows Brax's protocol."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from lockstep.envs.load import near
from lockstep.errors import ConfigError
from lockstep.jax.envs.brax_like import BraxLike

# Imported by name, so that type checks do not need it installed.
registry: Any = importlib.import_module("mujoco_playground").registry


def maker(name: str) -> Callable[..., BraxLike]:
    """A factory of a Playground environment; keyword arguments override its config."""
    known = list(registry.ALL_ENVS)
    if name not in known:
        raise ConfigError(f"the playground has no environment {name}{near(name, known)}")
    config: Any = registry.get_default_config(name)

    def make(*, policy_keys: Sequence[str] = (), critic_keys: Sequence[str] = (), **kwargs: Any) -> BraxLike:
        # Playground's own training wrapper repeats actions, and counts the steps of an episode with the repetitions.
        repeat = kwargs.pop("action_repeat", int(config.action_repeat))
        if not isinstance(repeat, int) or repeat < 1:
            raise ConfigError(f"env.kwargs action_repeat={repeat!r} must be a whole number, at least 1")
        length = kwargs.pop("episode_length", int(config.episode_length))
        limit = kwargs.pop("max_episode_steps", -(-length // repeat))
        # States of the Warp implementation cannot be selected row by row.
        changes = {"impl": "jax"} if "impl" in config else {}
        env = registry.load(name, config_overrides=changes | kwargs or None)
        return BraxLike(env, limit, policy_keys, critic_keys, action_repeat=repeat)

    return make
