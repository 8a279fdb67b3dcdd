"""Settings of learning from a replay buffer, shared by DQN, SAC and TD3."""

from dataclasses import dataclass
from typing import Literal

from lockstep.algorithms import checks
from lockstep.errors import ConfigError
from lockstep.world import part_of_shard

VALUE_METRICS = ("loss/value", "value/q", "value/target", "value/td_error")
"""The metrics of every loss of action values, in the order of its sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """Settings of every algorithm that learns from a replay buffer. Counts are global: summed over all ranks."""

    num_steps: int = 1
    """Steps of each environment in one update, before it learns (T)."""
    updates_per_step: float = 1.0
    """Update-to-data ratio (UTD): gradient steps per environment step of all ranks together."""
    batch_size: int = 256
    """Transitions of one gradient step, all ranks together."""
    learning_starts: int = 10_000
    """Environment steps, all ranks together, before the first gradient step."""
    capacity: int = 1_000_000
    """Transitions in the replay buffer, all ranks together; each shard holds an equal part. The final observation of a
    truncated episode occupies the space of one. A buffer on the host has `n_step` more rows for each environment, and
    as many as a stack has images: it may hold some more transitions."""
    replay_path: str | None = None
    """Hold observations in memory-mapped files in this directory instead of in memory."""
    replay_device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where observations are stored: `auto` is the rank's GPU where they fit into half of its free memory, else the
    host. The choice changes no number, except that `cpu` keeps environments in JAX on the host where there is a GPU."""
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
        checks.number(self, "capacity", "batch_size")
        checks.at_least(self, 1, "num_steps", "batch_size", "capacity", "n_step")
        checks.at_least(self, 0, "learning_starts", "priority_exponent")
        checks.positive(self, "updates_per_step", "priority_eps")
        checks.fraction(self, "gamma", "importance_exponent")
        if self.replay_device == "cuda" and self.replay_path is not None:
            raise ConfigError(
                f"replay_device=cuda stores observations in the GPU's memory, and replay_path={self.replay_path} in "
                "files; leave one of them out"
            )
        if self.capacity < self.batch_size:
            raise ConfigError(f"capacity={self.capacity} must be at least batch_size={self.batch_size}")

    def minibatch_rows(self, shard_envs: int, num_shards: int) -> int:
        """Transitions of one shard's part of a minibatch (N)."""
        del shard_envs
        return part_of_shard(self.batch_size, num_shards, "batch_size")

    def gradient_steps(self, num_envs: int) -> float:
        """Gradient steps per update (a rollout and the learning after it), on average."""
        return self.updates_per_step * num_envs * self.num_steps
