"""`brax/NAME`: rigid bodies of Brax (Freeman et al., 2021, arXiv:2106.13281), without its own wrappers."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from lockstep.envs.load import near
from lockstep.errors import ConfigError
from lockstep.jax.envs.brax_like import BraxLike

# Imported by name, so that type checks do not need it installed.
envs: Any = importlib.import_module("brax.envs")

_STEPS = 1000
"""Default episode limit, as in Brax's own training."""


def maker(name: str) -> Callable[..., BraxLike]:
    """A factory of a Brax environment; takes the environment's keyword arguments."""
    known = list(envs._envs)  # Brax has no public list
    if name not in known:
        raise ConfigError(f"brax has no environment {name}{near(name, known)} (it has {', '.join(known)})")

    def make(
        *,
        max_episode_steps: int = _STEPS,
        policy_keys: Sequence[str] = (),
        critic_keys: Sequence[str] = (),
        **kwargs: Any,
    ) -> BraxLike:
        return BraxLike(envs.get_environment(name, **kwargs), max_episode_steps, policy_keys, critic_keys)

    return make
