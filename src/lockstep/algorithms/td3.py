"""Config and metric names of twin delayed deep deterministic policy gradient (TD3), shared by all backends.

All gradients of a step are taken at the parameters and targets of its beginning and sent in one message; then the
critics move, and, in every `policy_delay`-th step, the policy and both target networks.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from lockstep.algorithms import checks
from lockstep.algorithms.interface import ALL_SETTINGS
from lockstep.algorithms.replay import VALUE_METRICS, ReplayConfig

POLICY_METRICS = ("loss/policy",)
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

NUM_ACTIONS = 1
"""Whose noise is drawn for a transition: that of the critics' target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TD3Config(ReplayConfig):
    """TD3. Every count is global: summed over all ranks. Scaling out changes no number here.

    DDPG is `num_critics=1`, `policy_delay=1`, `target_noise=0`. In the first `learning_starts` steps actions are
    uniformly random within their bounds.
    """

    FRAMEWORKS: ClassVar[frozenset[str]] = frozenset({"torch", "jax"})
    FOLLOWS: ClassVar[frozenset[str]] = ALL_SETTINGS
    SAVED: ClassVar[tuple[str, ...]] = ("num_critics", "layer_norm", "exploration_noise")

    learning_rate: float = 3e-4
    """Adam's step size of the policy at the start."""
    critic_learning_rate: float | None = None
    """Adam's step size of the critics at the start; `null`: `learning_rate`."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """`linear` falls to 0 at `total_steps`."""
    target_rate: float = 0.005
    """Polyak averaging (tau): move the target networks by this fraction with every step of the policy."""
    exploration_noise: float = 0.1
    """Standard deviation of the normal noise of actions, for actions scaled to [-1, 1]."""
    target_noise: float = 0.2
    """Standard deviation of the noise of the target policy's actions, scaled to [-1, 1]; 0: no target policy
    smoothing."""
    noise_clip: float = 0.5
    """Limit of the noise of the target policy's actions, scaled to [-1, 1]."""
    num_critics: int = 2
    """Critics, each with its own parameters."""
    target_critics: int | None = None
    """Critics whose minimum is the target, chosen at random at each gradient step (REDQ; Chen et al., 2021).
    `null`: all. The policy maximizes the first critic, or the mean of all if this is a number."""
    layer_norm: bool = False
    """Layer normalization in the critics' hidden layers, before the activation."""
    dropout: float = 0.0
    """Probability to drop a unit of the critics' hidden layers, before the layer normalization (DroQ; Hiraoka et al.,
    2022)."""
    policy_delay: int = 2
    """Gradient steps of the critics for each one of the policy and of the target networks."""
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
        checks.at_least(self, 0, "exploration_noise", "target_noise")
        checks.positive(self, "learning_rate", "critic_learning_rate", "noise_clip", "adam_eps")
        checks.limit(self, "max_grad_norm")
