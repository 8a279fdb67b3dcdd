"""Config and metric names of deep Q-learning, shared by all backends."""

import math
from dataclasses import dataclass
from typing import Literal

from lockstep.errors import SHARDS, ConfigError

METRICS = (
    "loss/value",
    "value/q",
    "value/target",
    "value/td_error",
    "optim/grad_norm",
    "optim/skipped",
    "optim/learning_rate",
    "exploration/epsilon",
    "replay/size",
    "replay/skipped",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DQNConfig:
    """Every count is global: summed over all ranks. Scaling out changes no number here."""

    num_steps: int = 1
    """Steps of each environment between two updates (T)."""
    updates_per_step: float = 0.25
    """Gradient steps per environment step of all ranks together."""
    batch_size: int = 32
    """Transitions of one gradient step, all ranks together."""
    learning_starts: int = 10_000
    """Environment steps, all ranks together, before the first gradient step."""
    capacity: int = 100_000
    """Transitions in the replay buffer, all ranks together; each shard holds an equal part."""
    replay_path: str | None = None
    """Hold observations in memory-mapped files in this directory instead of in memory."""
    checkpoint_replay: bool = True
    """Whether checkpoints include the replay buffer; otherwise a resumed run fills a new one before it learns."""
    learning_rate: float = 1e-4
    """Adam's step size at the start."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """`linear` falls to 0 at `total_steps`."""
    gamma: float = 0.99
    """Discount per step."""
    n_step: int = 1
    """Rewards summed before the target bootstraps; fewer where an episode ends."""
    double: bool = True
    """Select the next action with the online network, value it with the target network (van Hasselt et al., 2016)."""
    dueling: bool = False
    """Q = V + A - mean A, from two streams (Wang et al., 2016)."""
    value_distribution: Literal["none", "categorical", "quantile"] = "none"
    """Learn the return's distribution: `categorical` is C51 (Bellemare et al., 2017), `quantile` QR-DQN (Dabney et al.,
    2018)."""
    num_atoms: int = 51
    """`categorical` only: points of the support."""
    v_min: float = -10.0
    """`categorical` only: smallest return of the support."""
    v_max: float = 10.0
    """`categorical` only: largest return of the support."""
    num_quantiles: int = 200
    """`quantile` only: quantiles of the return."""
    noisy: bool = False
    """Explore by learned noise in the weights of the heads (Fortunato et al., 2018) instead of by epsilon."""
    noisy_std: float = 0.5
    """`noisy` only: initial deviation of the noise (sigma 0)."""
    prioritized: bool = False
    """Draw transitions by their last TD error (Schaul et al., 2016), or by their last loss where a distribution is
    learned (Hessel et al., 2018)."""
    priority_exponent: float = 0.6
    """`prioritized` only: alpha, 0 draws uniformly."""
    importance_exponent: float = 0.4
    """`prioritized` only: beta at the start; it rises linearly to 1 at `total_steps`."""
    priority_eps: float = 1e-6
    """`prioritized` only: added to every TD error."""
    loss: Literal["huber", "mse"] = "huber"
    """Loss of the TD error, where no distribution is learned; `huber` is quadratic within 1."""
    max_grad_norm: float | None = 10.0
    """Largest 2-norm of the global gradient; `null` does not clip."""
    target_update_every: int = 1000
    """Gradient steps between copies of the parameters to the target network."""
    target_rate: float | None = None
    """Polyak averaging (tau): move the target network by this fraction after every gradient step instead of copying."""
    epsilon_start: float | None = None
    """Probability of a random action at first; `null`: 1, or 0 if `noisy`."""
    epsilon_end: float | None = None
    """Probability of a random action in the end; `null`: 0.05, or 0 if `noisy`."""
    epsilon_steps: int = 100_000
    """Environment steps of all ranks at which `linear` reaches the end, and `exponential` 63% of the difference."""
    epsilon_schedule: Literal["linear", "exponential"] = "linear"
    """How the probability of a random action decays."""
    adam_eps: float = 1e-8
    """Adam's epsilon."""

    def __post_init__(self) -> None:  # noqa: C901  # one check after another
        """Refuse values that cannot train."""
        for name in ("num_steps", "batch_size", "capacity", "n_step", "num_quantiles", "target_update_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("learning_starts", "epsilon_steps", "noisy_std", "priority_exponent"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 0, and finite")
        for name in ("updates_per_step", "learning_rate", "adam_eps", "priority_eps"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)} must be greater than 0, and finite")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ConfigError(f"max_grad_norm={self.max_grad_norm} must be greater than 0, or null to switch it off")
        if self.target_rate is not None and not 0 < self.target_rate <= 1:
            raise ConfigError(f"target_rate={self.target_rate} must lie in (0, 1], or be null for copies")
        for name in ("gamma", "epsilon_start", "epsilon_end", "importance_exponent"):
            if getattr(self, name) is not None and not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name)} must lie in [0, 1]")
        if self.num_atoms < 2:
            raise ConfigError(f"num_atoms={self.num_atoms} must be at least 2")
        if not -math.inf < self.v_min < self.v_max < math.inf:
            raise ConfigError(f"v_min={self.v_min} must be less than v_max={self.v_max}, and both finite")
        if self.capacity < self.batch_size:
            raise ConfigError(f"capacity={self.capacity} must be at least batch_size={self.batch_size}")

    @property
    def epsilon_range(self) -> tuple[float, float]:
        """Probability of a random action at first and in the end."""
        start, end = (0.0, 0.0) if self.noisy else (1.0, 0.05)
        return (
            start if self.epsilon_start is None else self.epsilon_start,
            end if self.epsilon_end is None else self.epsilon_end,
        )

    @property
    def num_points(self) -> int:
        """Outputs per action: points of the return's distribution, or 1."""
        points = {"none": 1, "categorical": self.num_atoms, "quantile": self.num_quantiles}
        return points[self.value_distribution]

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
