"""The protocol all environments follow, and the way from a task's name to a vector environment."""

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from lockstep.envs.load import near
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError

Step = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]
"""Observation, reward, terminated, truncated, final observation; see `VectorEnv.step`."""

BUILT_IN = {
    "lockstep/Cartpole-v0": ("lockstep.envs.cartpole", "Cartpole"),
    "lockstep/Corridor-v0": ("lockstep.envs.toys", "Corridor"),
    "lockstep/Match-v0": ("lockstep.envs.toys", "Match"),
    "lockstep/Reach-v0": ("lockstep.envs.toys", "Reach"),
}
"""Tasks that need nothing but numpy, and the classes behind them."""


class VectorEnv(Protocol):
    """The environments of one shard, stepped together.

    Follow it in a class of your own, made by `Class(num_envs=..., **kwargs)`, and name it as task: `module:Class`.

    Two more methods are optional, `state` and `restore` (`lockstep.envs.state.SavableEnv`): with them a run that was
    stopped and resumed ends with the same bits as one that never stopped; without them it begins new episodes.
    """

    spec: EnvSpec
    """What one environment looks like."""
    num_envs: int
    """B, how many there are."""

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Begin new episodes everywhere.

        Args:
            seeds: one per environment; where environments are not `separately_seedable`, only the first counts.

        Returns:
            First observations, float32 `[B, O]`.
        """
        ...

    def step(self, action: np.ndarray) -> Step:
        """Step every environment once.

        The arrays may be used again by the next call and need not be contiguous: copy what you keep.

        Args:
            action: int64 `[B]` (discrete), int64 `[B, K]` (multi_discrete) or float32 `[B, D]` (continuous, in bounds).

        Returns:
            Observation float32 `[B, O]`, reward float32 `[B]`, terminated bool `[B]`, truncated bool `[B]`, and the
            final observation: `None` with `next_step` (the observation is the true one), else float32 `[B, O]` whose
            rows are meant where an episode ended.
        """
        ...

    def close(self) -> None:
        """Free what is held; may be called twice."""
        ...


def refuse_unknown_kwargs(creator: Any, kwargs: dict[str, Any], task: str) -> None:
    """Refuse keyword arguments that `creator` does not take, naming those it does."""
    try:
        parameters = inspect.signature(creator).parameters.values()
    except (TypeError, ValueError):  # no signature to be had; then the call decides
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [
        p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY and p.name not in ("num_envs", "render_mode")
    ]
    for name in kwargs:
        if name not in known:
            setting = "env.max_episode_steps" if name == "max_episode_steps" else f"env.kwargs {name}"
            takes = ", ".join(known) or "no keyword arguments"
            raise ConfigError(f"{setting}={kwargs[name]!r} is unknown to {task}{near(name, known)} (it takes {takes})")
