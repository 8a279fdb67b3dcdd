"""The settings of environments."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    """How environments of a task are made."""

    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of the environment."""
    wrappers: tuple[str, ...] = ()
    """Gymnasium wrappers by `module:Class`, innermost first; given the environment alone."""
    vectorization: Literal["auto", "entry_point", "sync", "async"] = "auto"
    """`auto`: the task's own vectorized entry point if it has one, else `sync`; `async`: a process per environment."""
    max_episode_steps: int | None = None
    """Truncate episodes here instead of at the task's own limit."""
    placement: Literal["auto", "host", "device"] = "auto"
    """Where PPO steps the environments: `host` (numpy) or `device` (tensors of `ml_framework` on the learner's device).
    `auto`: on the device if the task is only there, or is there faster."""
