"""Config and metric names of soft actor-critic, shared by all backends.

All gradients of a step (critics, policy, temperature) are taken at the parameters of its beginning, as in Brax, and
sent in one message; then all parameters move, and the target critics follow the new critics.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from lockstep.algorithms import checks
from lockstep.algorithms.interface import ALL_SETTINGS
from lockstep.algorithms.replay import VALUE_METRICS, ReplayConfig
from lockstep.errors import ConfigError

POLICY_METRICS = ("loss/policy", "policy/entropy", "policy/alpha")
"""The metrics of the policy's loss, in the order of its sums."""
METRICS = (
    *VALUE_METRICS,
    *POLICY_METRICS,
    "optim/grad_norm",
    "optim/policy_grad_norm",
    "optim/skipped",
    "optim/learning_rate",
    "replay/size",
    "replay/skipped",
)

NUM_ACTIONS = 2
"""Drawn for a transition: of the critics' target and of the policy's loss."""
LOG_STD_RANGE = (-20.0, 2.0)
"""Limits of the log standard deviations of the policy's normal distribution, before tanh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SACConfig(ReplayConfig):
    """Soft actor-critic. Every count is global: summed over all ranks. Scaling out changes no number here.

    In the first `learning_starts` steps actions are uniformly random within their bounds.
    """

    FRAMEWORKS: ClassVar[frozenset[str]] = frozenset({"torch", "jax"})
    FOLLOWS: ClassVar[frozenset[str]] = ALL_SETTINGS
    SAVED: ClassVar[tuple[str, ...]] = ("num_critics", "layer_norm", "alpha")

    learning_rate: float = 3e-4
    """Adam's step size of the policy and of the temperature, at the start."""
    critic_learning_rate: float | None = None
    """Adam's step size of the critics at the start; `null`: `learning_rate`."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """`linear` falls to 0 at `total_steps`."""
    alpha: float | None = None
    """Temperature: the weight of the entropy. A number fixes it; `null` learns it (Haarnoja et al., 2018b)."""
    initial_alpha: float = 1.0
    """Learned temperature only: its value at the start."""
    target_entropy: float | None = None
    """Learned temperature only: the mean entropy to reach, in nats, of actions scaled to [-1, 1]; `null`: minus the
    number of action dimensions."""
    target_rate: float = 0.005
    """Polyak averaging (tau): move the target critics by this fraction after every gradient step."""
    num_critics: int = 2
    """Critics, each with its own parameters."""
    target_critics: int | None = None
    """Critics whose minimum is the target, chosen at random at each gradient step (REDQ; Chen et al., 2021).
    `null`: all. The policy maximizes the minimum of all critics, or their mean if this is a number."""
    layer_norm: bool = False
    """Layer normalization in the critics' hidden layers, before the activation."""
    dropout: float = 0.0
    """Probability to drop a unit of the critics' hidden layers, before the layer normalization (DroQ; Hiraoka et al.,
    2022)."""
    policy_delay: int = 1
    """Gradient steps of the critics for each one of policy and temperature."""
    policy_average: float = 0.0
    """The policy that is evaluated and saved has the mean parameters over about this part of the policy's steps so far
    (Nikishin et al., 2018); the one that acts and learns has not. 0: they are one."""
    max_grad_norm: float | None = None
    """Largest 2-norm of the critics' global gradient, and of the policy's; `null` does not clip."""
    adam_eps: float = 1e-8
    """Adam's epsilon."""

    def __post_init__(self) -> None:
        """Refuse values that cannot train."""
        ReplayConfig.__post_init__(self)
        checks.critics(self)
        checks.fraction(self, "policy_average")
        checks.at_least(self, 1, "policy_delay")
        checks.at_least(self, 0, "alpha")
        checks.positive(self, "learning_rate", "critic_learning_rate", "initial_alpha", "adam_eps")
        checks.limit(self, "max_grad_norm")
        checks.finite(self, "target_entropy")
        if self.alpha is not None and (self.target_entropy is not None or self.initial_alpha != 1.0):
            name = "initial_alpha" if self.target_entropy is None else "target_entropy"
            raise ConfigError(
                f"{name}={getattr(self, name)} is for a learned temperature, but alpha={self.alpha} fixes it; use "
                f"alpha=null, or leave {name} out"
            )
