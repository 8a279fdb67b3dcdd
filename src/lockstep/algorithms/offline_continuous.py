"""Settings of the algorithms on logged continuous actions: IQL, TD3+BC and CQL."""

from dataclasses import dataclass
from typing import Literal

from lockstep.algorithms import checks
from lockstep.algorithms.offline import OfflineConfigBase
from lockstep.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class IQLConfig(OfflineConfigBase):
    """Implicit Q-learning (Kostrikov et al., 2021, arXiv:2110.06169): values of logged actions only."""

    batch_size: int = 256
    """Rows of one gradient step, summed over all ranks."""
    learning_rate: float = 3e-4
    """Step size at the start."""
    target_rate: float = 0.005
    """Update rate of the target networks after every gradient step (tau)."""
    gamma: float = 0.99
    """Discount per step."""
    reward_scale: float = 1.0
    """Factor of the rewards that values are learned from; estimates remain in the units of the log."""
    num_critics: int = 2
    """Q networks; their minimum is used (Fujimoto et al., 2018)."""
    expectile: float = 0.7
    """Expectile of Q(s, a) over the logged actions that is the value of a state: 0.5 is the mean, 1 the maximum."""
    beta: float = 3.0
    """Inverse temperature of the weights exp(beta A(s, a)) of logged actions; 0 is behaviour cloning."""
    max_weight: float = 100.0
    """Largest of these weights."""
    policy: Literal["greedy", "sampled"] = "greedy"
    """The policy to estimate: the mean of the Gaussian, or a sample of it. An exported file acts by the mean."""

    def __post_init__(self) -> None:
        """Check the values."""
        OfflineConfigBase.__post_init__(self)
        _check_values(self)
        checks.number(self, "expectile")
        if not 0 < self.expectile < 1:
            raise ConfigError(f"expectile={self.expectile} must lie between 0 and 1")
        checks.at_least(self, 0, "beta")
        checks.positive(self, "max_weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class TD3BCConfig(OfflineConfigBase):
    """TD3 with behaviour cloning (Fujimoto and Gu, 2021, arXiv:2106.06860): a deterministic policy."""

    batch_size: int = 256
    """Rows of one gradient step, summed over all ranks."""
    learning_rate: float = 3e-4
    """Step size at the start."""
    target_rate: float = 0.005
    """Update rate of the target networks at every update of the policy (tau)."""
    gamma: float = 0.99
    """Discount per step."""
    reward_scale: float = 1.0
    """Factor of the rewards that values are learned from; estimates remain in the units of the log."""
    num_critics: int = 2
    """Q networks; their minimum is used (Fujimoto et al., 2018)."""
    alpha: float = 2.5
    """Weight of Q, relative to its mean magnitude, against the imitation of the log; 0 is behaviour cloning."""
    policy_delay: int = 2
    """Gradient steps of the critics for each one of the policy and of the target networks."""
    target_noise: float = 0.2
    """Standard deviation of the noise of the target policy's actions, scaled to [-1, 1]; 0: no target policy
    smoothing."""
    noise_clip: float = 0.5
    """Limit of the noise of the target policy's actions, scaled to [-1, 1]."""

    def __post_init__(self) -> None:
        """Check the values."""
        OfflineConfigBase.__post_init__(self)
        _check_values(self)
        checks.at_least(self, 0, "alpha", "target_noise", "noise_clip")
        checks.at_least(self, 1, "policy_delay")

    @property
    def policy(self) -> Literal["greedy"]:
        """The kind of policy to estimate and export: it is deterministic."""
        return "greedy"


@dataclass(frozen=True, slots=True, kw_only=True)
class CQLConfig(OfflineConfigBase):
    """Conservative Q-learning on SAC (Kumar et al., 2020, arXiv:2006.04779): low values of actions outside the log."""

    batch_size: int = 256
    """Rows of one gradient step, summed over all ranks."""
    learning_rate: float = 3e-4
    """Step size at the start."""
    target_rate: float = 0.005
    """Update rate of the target networks after every gradient step (tau)."""
    gamma: float = 0.99
    """Discount per step."""
    reward_scale: float = 1.0
    """Factor of the rewards that values are learned from; estimates remain in the units of the log."""
    num_critics: int = 2
    """Q networks; their minimum is used (Fujimoto et al., 2018)."""
    cql_alpha: float = 5.0
    """Weight of the penalty; where it starts with `cql_gap`."""
    cql_gap: float | None = None
    """Learn the weight of the penalty so that the penalty is this (the Lagrangian variant); `null`: fixed weight."""
    num_sampled_actions: int = 10
    """Actions of each of three kinds in the penalty: uniform, of the policy, of the policy in the next state."""
    target_entropy: float | None = None
    """Mean entropy to reach, in nats, of actions scaled to [-1, 1]; `null`: minus the number of action dimensions."""
    initial_alpha: float = 1.0
    """Temperature, the weight of the entropy, at the start; it is learned (Haarnoja et al., 2018b)."""
    policy: Literal["greedy", "sampled"] = "greedy"
    """The policy to estimate: tanh of the mean of the Gaussian, or a sample of it. An exported file acts by tanh of the
    mean."""

    def __post_init__(self) -> None:
        """Check the values."""
        OfflineConfigBase.__post_init__(self)
        _check_values(self)
        checks.at_least(self, 0, "cql_alpha")
        checks.at_least(self, 1, "num_sampled_actions")
        checks.positive(self, "initial_alpha")
        checks.finite(self, "cql_gap", "target_entropy")
        if self.cql_gap is not None and self.cql_alpha == 0:
            raise ConfigError(f"cql_gap={self.cql_gap} learns the weight of the penalty, which cannot start at 0")


ContinuousConfig = IQLConfig | TD3BCConfig | CQLConfig
"""The settings of any algorithm on continuous actions."""


def _check_values(config: ContinuousConfig) -> None:
    """Check what all of them have."""
    checks.at_least(config, 1, "num_critics")
    checks.positive(config, "reward_scale")
    checks.fraction(config, "gamma")
