"""`brax/NAME`: rigid bodies of Brax (Freeman et al., 2021, arXiv:2106.13281), without its own wrappers."""

from collections.abc import Callable
from typing import Any

import brax.envs

from lockstep.envs.load import near
from lockstep.errors import ConfigError
from lockstep.jax.envs.brax_like import BraxLike

_STEPS = 1000
"""After which an episode is truncated, if the run does not say otherwise; Brax's own training does the same."""


def maker(name: str) -> Callable[..., BraxLike]:
    """What makes an environment of Brax by its name; keyword arguments are its own."""
    known = list(brax.envs._envs)  # pyright: ignore[reportPrivateUsage]  # no other list of them
    if name not in known:
        raise ConfigError(f"brax has no environment {name}{near(name, known)} (it has {', '.join(known)})")

    def make(*, max_episode_steps: int = _STEPS, **kwargs: Any) -> BraxLike:
        return BraxLike(brax.envs.get_environment(name, **kwargs), max_episode_steps)

    return make
