"""Config and metric names of deep Q-learning, shared by all backends."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from lockstep.algorithms import checks
from lockstep.algorithms.interface import ALL_SETTINGS
from lockstep.algorithms.replay import VALUE_METRICS, ReplayConfig
from lockstep.errors import ConfigError

METRICS = (
    *VALUE_METRICS,
    "optim/grad_norm",
    "optim/skipped",
    "optim/learning_rate",
    "exploration/epsilon",
    "replay/size",
    "replay/skipped",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DQNConfig(ReplayConfig):
    """Deep Q-learning. Every count is global: summed over all ranks. Scaling out changes no number here."""

    FRAMEWORKS: ClassVar[frozenset[str]] = frozenset({"torch", "jax"})
    FOLLOWS: ClassVar[frozenset[str]] = ALL_SETTINGS
    SAVED: ClassVar[tuple[str, ...]] = (
        "dueling",
        "value_distribution",
        "num_atoms",
        "v_min",
        "v_max",
        "num_quantiles",
        "noisy",
        "noisy_std",
        "epsilon_end",
    )

    updates_per_step: float = 0.25
    """Update-to-data ratio (UTD): gradient steps per environment step of all ranks together."""
    batch_size: int = 32
    """Transitions of one gradient step, all ranks together."""
    capacity: int = 100_000
    """Transitions in the replay buffer, all ranks together; each shard holds an equal part."""
    learning_rate: float = 1e-4
    """Adam's step size at the start."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """`linear` falls to 0 at `total_steps`."""
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
    """`noisy` only: initial standard deviation of the noise (sigma 0)."""
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

    def __post_init__(self) -> None:
        """Refuse values that cannot train."""
        ReplayConfig.__post_init__(self)
        checks.at_least(self, 1, "num_quantiles", "target_update_every")
        checks.at_least(self, 0, "epsilon_steps", "noisy_std")
        checks.positive(self, "learning_rate", "adam_eps")
        checks.fraction(self, "epsilon_start", "epsilon_end")
        checks.limit(self, "max_grad_norm")
        checks.number(self, "num_atoms", "v_min", "v_max")
        checks.number_or_none(self, "target_rate")
        if self.target_rate is not None and not 0 < self.target_rate <= 1:
            raise ConfigError(f"target_rate={self.target_rate} must lie in (0, 1], or be null for copies")
        if self.num_atoms < 2:
            raise ConfigError(f"num_atoms={self.num_atoms} must be at least 2")
        if not -math.inf < self.v_min < self.v_max < math.inf:
            raise ConfigError(f"v_min={self.v_min} must be less than v_max={self.v_max}, and both finite")

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
