"""`brax/NAME`: rigid bodies of Brax (Freeman et al., 2021, arXiv:2106.13281), without its own wrappers."""

import importlib
from collections.abc import Callable
from typing import Any

from lockstep.envs.load import near
from lockstep.errors import ConfigError
from lockstep.jax.envs.brax_like import BraxLike

# By name: where it is not installed, this file can be checked nevertheless.
envs: Any = importlib.import_module("brax.envs")

_STEPS = 1000
"""After which an episode is truncated, if the run does not say otherwise; Brax's own training does the same."""


def maker(name: str) -> Callable[..., BraxLike]:
    """What makes an environment of Brax by its name; keyword arguments are its own."""
    known = list(envs._envs)  # no other list of them
    if name not in known:
        raise ConfigError(f"brax has no environment {name}{near(name, known)} (it has {', '.join(known)})")

    def make(*, max_episode_steps: int = _STEPS, **kwargs: Any) -> BraxLike:
        return BraxLike(envs.get_environment(name, **kwargs), max_episode_steps)

    return make
