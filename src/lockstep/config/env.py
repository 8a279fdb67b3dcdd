"""The settings of environments."""

from dataclasses import dataclass, field
from typing import Any, Literal

from lockstep.config.settings import convert_fields
from lockstep.errors import ConfigError


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
    policy_keys: tuple[str, ...] = ()
    """Groups of observations that the policy receives, joined in this order; empty: the task's own choice, of a
    Gymnasium `Dict` all groups that `critic_keys` does not name."""
    critic_keys: tuple[str, ...] = ()
    """Groups of observations that the value network receives; empty: the task's own choice, of a Gymnasium `Dict` those
    of the policy."""
    frame_stack: int = 1
    """Observations of the last steps, joined, that a policy receives; for vectors."""
    clip_action: float | None = None
    """Clip continuous actions to within this of 0, besides the task's own bounds; `null`: only the task's own."""
    clip_observation: float | None = None
    """Clip observations, before they are normalized, to within this of 0."""
    placement: Literal["auto", "host", "device"] = "auto"
    """Where PPO, and in JAX also SAC and TD3, step the environments: `host` (numpy) or `device` (tensors of
    `ml_framework` on the learner's device).
    `auto`: on the device if the task is only there, or is there faster. JAX reads torch tensors through DLPack.
    `device` has the default settings of that kind of task."""

    def __post_init__(self) -> None:
        """Refuse limits that leave nothing, and groups that are named twice."""
        convert_fields(self, "env.")
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            raise ConfigError(f"env.max_episode_steps={self.max_episode_steps} must be at least 1, or null")
        if self.frame_stack < 1:
            raise ConfigError(f"env.frame_stack={self.frame_stack} must be at least 1")
        for name in ("clip_action", "clip_observation"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"env.{name}={value} must be greater than 0, or null to switch it off")
        for name in ("policy_keys", "critic_keys"):
            keys = getattr(self, name)
            repeated = next((key for key in keys if keys.count(key) > 1), None)
            if repeated is not None:
                raise ConfigError(f"env.{name}={list(keys)} names {repeated} more than once; name each group once")
