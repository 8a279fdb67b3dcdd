"""Settings of learning from a replay buffer, shared by DQN, SAC and TD3."""

import math
from dataclasses import dataclass

from lockstep.errors import SHARDS, ConfigError

VALUE_METRICS = ("loss/value", "value/q", "value/target", "value/td_error")
"""The metrics of every loss of action values, in the order of its sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """Settings of every algorithm that learns from a replay buffer. Counts are global: summed over all ranks."""

    num_steps: int = 1
    """Steps of each environment between two updates (T)."""
    updates_per_step: float = 1.0
    """Gradient steps per environment step of all ranks together."""
    batch_size: int = 256
    """Transitions of one gradient step, all ranks together."""
    learning_starts: int = 10_000
    """Environment steps, all ranks together, before the first gradient step."""
    capacity: int = 1_000_000
    """Transitions in the replay buffer, all ranks together; each shard holds an equal part."""
    replay_path: str | None = None
    """Hold observations in memory-mapped files in this directory instead of in memory."""
    checkpoint_replay: bool = True
    """Whether checkpoints include the replay buffer; otherwise a resumed run fills a new one before it learns."""
    gamma: float = 0.99
    """Discount per step."""
    n_step: int = 1
    """Rewards summed before the target bootstraps; fewer where an episode ends."""
    prioritized: bool = False
    """Draw transitions by their last TD error (Schaul et al., 2016); DQN: by their last loss where a distribution is
    learned (Hessel et al., 2018)."""
    priority_exponent: float = 0.6
    """`prioritized` only: alpha of the paper; 0 draws uniformly."""
    importance_exponent: float = 0.4
    """`prioritized` only: beta of the paper at the start; it rises linearly to 1 at `total_steps`."""
    priority_eps: float = 1e-6
    """`prioritized` only: added to every TD error."""

    def __post_init__(self) -> None:
        """Refuse values that cannot train."""
        check_at_least(self, 1, "num_steps", "batch_size", "capacity", "n_step")
        check_at_least(self, 0, "learning_starts", "priority_exponent")
        check_positive(self, "updates_per_step", "priority_eps")
        check_fraction(self, "gamma", "importance_exponent")
        if self.capacity < self.batch_size:
            raise ConfigError(f"capacity={self.capacity} must be at least batch_size={self.batch_size}")

    def minibatch_rows(self, shard_envs: int, num_shards: int) -> int:
        """Transitions of one shard's part of a minibatch (N)."""
        del shard_envs
        if self.batch_size % num_shards:
            raise ConfigError(
                f"batch_size={self.batch_size} does not divide among {num_shards} shards; "
                f"use a multiple of {num_shards} ({SHARDS})"
            )
        return self.batch_size // num_shards

    def gradient_steps(self, num_envs: int) -> float:
        """Gradient steps per iteration, on average."""
        return self.updates_per_step * num_envs * self.num_steps


def check_at_least(config: object, least: int, *names: str) -> None:
    """Raise `ConfigError` for a setting that is less than `least`, or infinite; `None` is allowed."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not least <= value < math.inf:
            limit = "" if isinstance(value, int) else ", and finite"
            raise ConfigError(f"{name}={value} must be at least {least}{limit}")


def check_positive(config: object, *names: str) -> None:
    """Raise `ConfigError` for a setting that is not positive and finite; `None` is allowed."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{name}={value} must be greater than 0, and finite")


def check_fraction(config: object, *names: str) -> None:
    """Raise `ConfigError` for a setting outside of [0, 1]; `None` is allowed."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0 <= value <= 1:
            raise ConfigError(f"{name}={value} must lie in [0, 1]")


def check_norm(max_grad_norm: float | None) -> None:
    """Raise `ConfigError` for a limit of the gradient's norm that is not positive."""
    if max_grad_norm is not None and not max_grad_norm > 0:
        raise ConfigError(f"max_grad_norm={max_grad_norm} must be greater than 0, or null to switch it off")


def check_critics(num_critics: int, target_critics: int | None, dropout: float, target_rate: float) -> None:
    """Raise `ConfigError` for settings of the critics of SAC and TD3 that cannot train."""
    if num_critics < 1:
        raise ConfigError(f"num_critics={num_critics} must be at least 1")
    if target_critics is not None and not 1 <= target_critics <= num_critics:
        raise ConfigError(
            f"target_critics={target_critics} must lie in [1, num_critics={num_critics}], or be null for all"
        )
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout={dropout} must lie in [0, 1); 0 switches it off")
    if not 0 < target_rate <= 1:
        raise ConfigError(f"target_rate={target_rate} must lie in (0, 1]")
