"""Settings and metric names of the algorithms on logged data, the same for every backend.

Those of continuous actions are in `offline_continuous.py`.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from lockstep.algorithms import checks
from lockstep.errors import ConfigError
from lockstep.world import part_of_shard

METRICS = (
    "loss/value",
    "loss/conservative",
    "loss/expectile",
    "loss/policy",
    "loss/behaviour",
    "loss/reward",
    "loss/policy_value",
    "value/q",
    "value/target",
    "value/td_error",
    "value/advantage",
    "policy/advantage_weight",
    "policy/entropy",
    "policy/alpha",
    "policy/cql_alpha",
    "optim/grad_norm",
    "optim/skipped",
    "optim/learning_rate",
    "data/epoch",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineConfigBase:
    """The settings of every algorithm on logged data. Counts are global: summed over all ranks."""

    batch_size: int = 512
    """Rows of one gradient step, summed over all ranks."""
    learning_rate: float = 1e-3
    """Step size at the start."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Adam (Kingma and Ba, 2015), or plain gradient descent."""
    learning_rate_schedule: Literal["constant", "linear", "exponential"] = "constant"
    """`linear` falls to 0 at the end; `exponential` is multiplied by `learning_rate_decay` after every epoch."""
    learning_rate_decay: float = 1.0
    """`exponential` only: factor per epoch."""
    l2_decay: float = 0.0
    """Weight decay: the factor of a parameter that is added to its gradient."""
    adam_eps: float = 1e-8
    """Adam's epsilon."""
    max_grad_norm: float | None = None
    """Largest 2-norm of the global gradient of the scores' network; `null` does not clip."""
    target_rate: float = 0.01
    """Update rate of the target networks after every gradient step (tau)."""
    estimate: bool = True
    """Whether to learn models of the reward, of each metric and of the policy's value, which some estimators need."""

    def __post_init__(self) -> None:
        """Check the values."""
        checks.at_least(self, 1, "batch_size")
        checks.at_least(self, 0, "l2_decay")
        checks.positive(self, "learning_rate", "adam_eps", "learning_rate_decay")
        checks.limit(self, "max_grad_norm")
        checks.number(self, "target_rate")
        if self.learning_rate_decay != 1.0 and self.learning_rate_schedule != "exponential":
            raise ConfigError(
                f"learning_rate_decay={self.learning_rate_decay} is only used with learning_rate_schedule=exponential, "
                f"and the schedule is {self.learning_rate_schedule}; set one of them"
            )
        if not 0 < self.target_rate <= 1:
            raise ConfigError(f"target_rate={self.target_rate} must lie in (0, 1]")

    def rows(self, num_shards: int) -> int:
        """Rows of one shard's part of a minibatch (N)."""
        return part_of_shard(self.batch_size, num_shards, "batch_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineDQNConfig(OfflineConfigBase):
    """Q-learning on logged data: of named actions (`dqn`), or of actions that are features (`parametric_dqn`)."""

    temperature: float = 0.35
    """`policy=softmax` only: the temperature of the softmax that turns scores into probabilities."""
    policy: Literal["greedy", "softmax"] = "greedy"
    """The policy to estimate and export: the action with the highest score, or one sampled from softmax(scores /
    temperature)."""
    gamma: float = 0.99
    """Discount per step, or per unit of time."""
    use_time_diff: bool = False
    """Discount by the time between two decisions: gamma ** (time_diff / time_diff_unit)."""
    time_diff_unit: float = 1.0
    """`use_time_diff` only: what counts as one step."""
    n_step: int = 1
    """Rewards summed before the target bootstraps; fewer where a trajectory ends."""
    maxq: bool = True
    """Value the next state by its best possible action; `false`: by the action that was taken there (SARSA)."""
    double: bool = True
    """`maxq` only: choose the next action by the online network, value it by the target network."""
    dueling: bool = False
    """Q from two streams, one of the state alone (Wang et al., 2016)."""
    loss: Literal["huber", "mse", "bce"] = "mse"
    """Loss of the TD error; `bce` takes Q as the logit of a probability and needs gamma = 0 and rewards in [0, 1]."""
    cql_alpha: float = 0.0
    """Weight of the penalty on actions that were not taken (CQL; Kumar et al., 2020, arXiv:2006.04779); 0: none."""
    reward_boost: dict[str, float] = field(default_factory=dict[str, float])
    """`dqn` only: added to the reward of an action, by its name."""
    bcq_threshold: float | None = None
    """`dqn` only: exclude actions whose probability in the log, relative to the most likely action, is lower than this,
    from targets and from the policy (discrete BCQ; Fujimoto et al., 2019, arXiv:1910.01708); `null` excludes none."""

    def __post_init__(self) -> None:
        """Check the values."""
        OfflineConfigBase.__post_init__(self)
        checks.at_least(self, 0, "cql_alpha")
        checks.number(self, "n_step")
        checks.at_least(self, 1, "n_step")
        checks.positive(self, "temperature", "time_diff_unit")
        if self.time_diff_unit != 1.0 and not self.use_time_diff:
            raise ConfigError(
                f"time_diff_unit={self.time_diff_unit} is only used with use_time_diff=true; set both, or neither"
            )
        checks.fraction(self, "gamma")
        if self.loss == "bce" and self.gamma != 0:
            raise ConfigError(f"loss=bce needs gamma=0 (scores are then probabilities), but gamma={self.gamma}")
        self._check_target()

    def _check_target(self) -> None:
        if self.n_step > 1 and self.use_time_diff:
            raise ConfigError(f"n_step={self.n_step} and use_time_diff=true contradict each other; use one of them")
        if self.n_step > 1 and self.reward_boost:
            raise ConfigError(
                f"reward_boost={self.reward_boost} is added to the reward of one action, but n_step={self.n_step} sums "
                "the rewards of several; use n_step=1"
            )
        for action, boost in self.reward_boost.items():
            if not checks.is_number(boost) or not math.isfinite(boost):
                raise ConfigError(f"reward_boost of action {action} is {boost!r}; it must be a finite number")
        checks.number_or_none(self, "bcq_threshold")
        if self.bcq_threshold is not None and not 0 <= self.bcq_threshold <= 1:
            raise ConfigError(f"bcq_threshold={self.bcq_threshold} must lie in [0, 1], or be null")
        if self.bcq_threshold is not None and not self.maxq:
            raise ConfigError(f"bcq_threshold={self.bcq_threshold} restricts a maximum; it needs maxq=true")


@dataclass(frozen=True, slots=True, kw_only=True)
class CloningConfig(OfflineConfigBase):
    """Behaviour cloning: scores are logits of the logged actions, learned by maximum likelihood."""

    temperature: float = 1.0
    """`policy=softmax` only: the temperature of the softmax that turns scores into probabilities; 1 reproduces those of
    the log."""
    policy: Literal["greedy", "softmax"] = "softmax"
    """The policy to estimate and export: the most frequent logged action, or the distribution of the logged actions."""
    gamma: float = 0.99
    """Discount per step of the estimates."""
    label_smoothing: float = 0.0
    """Part of the probability that is spread evenly over the possible actions."""

    def __post_init__(self) -> None:
        """Check the values."""
        OfflineConfigBase.__post_init__(self)
        checks.positive(self, "temperature")
        checks.fraction(self, "gamma")
        checks.number(self, "label_smoothing")
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"label_smoothing={self.label_smoothing} must lie in [0, 1)")
