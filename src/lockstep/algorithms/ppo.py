"""Config and metric names of PPO, shared by all backends."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from lockstep.algorithms import checks
from lockstep.algorithms.interface import ALL_SETTINGS
from lockstep.errors import WHAT_SHARDS_ARE, ConfigError

LOSS_METRICS = ("loss/policy", "loss/value", "policy/entropy", "policy/kl", "policy/clip_fraction")
"""The metrics of the loss, in the order of its sums."""
METRICS = (
    *LOSS_METRICS,
    "optim/grad_norm",
    "optim/skipped",
    "optim/learning_rate",
    "value/explained_variance",
)

_LONGEST_SEQUENCE = 32
"""Longest default `sequence_length` of a recurrent policy: each step of a sequence waits for the one before."""
SHORTEST_SEQUENCE = 8
"""Shortest default `sequence_length` of a recurrent policy, unless rollouts are shorter: gradients would reach back
over hardly any steps."""
ADAPTIVE_RATES = (1e-6, 1e-2)
"""The lowest and the highest learning rate of `learning_rate_schedule=adaptive`."""
BOUND = 1.1
"""Means of actions beyond +-this are penalized with `bounds_loss_coef`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOConfig:
    """Every count is global: summed over all ranks. Scaling out changes no number here."""

    FRAMEWORKS: ClassVar[frozenset[str]] = frozenset({"torch", "jax"})
    FOLLOWS: ClassVar[frozenset[str]] = ALL_SETTINGS
    SAVED: ClassVar[tuple[str, ...]] = ()

    num_steps: int = 128
    """Steps of each environment in one rollout (T)."""
    sequence_length: int | None = None
    """Steps of the sequences that a recurrent policy learns from; gradients stop at their start. Must divide
    `num_steps`; `null`: `num_steps`, or its largest divisor up to 32. Only with `network.recurrent`."""
    num_epochs: int = 4
    """Passes over each rollout."""
    num_minibatches: int = 4
    """Gradient steps per pass; a minibatch is `num_envs * num_steps / num_minibatches` transitions."""
    learning_rate: float = 2.5e-4
    """Adam's step size at the start."""
    learning_rate_schedule: Literal["constant", "linear", "adaptive"] = "linear"
    """`linear` falls to 0 at `total_steps`; `adaptive` follows the global KL from 1e-6 to 1e-2: see
    `desired_kl`."""
    desired_kl: float = 0.01
    """`adaptive` only: target KL over all ranks. Above twice this the learning rate is divided by 1.5; below half of
    it, multiplied by 1.5."""
    adapt_every: Literal["epoch", "minibatch"] = "epoch"
    """`adaptive` only: adapt the learning rate after each epoch, or each minibatch, from its KL over all ranks."""
    adapt_before_step: bool = False
    """`adapt_every=minibatch` only: change the rate before the gradient step of the minibatch, as rsl_rl does."""
    kl_reference: Literal["rollout", "previous_epoch"] = "rollout"
    """The policy that the KL is measured from: the one that collected the rollout, or (`previous_epoch`) the one before
    the row's previous gradient step, as in rl_games."""
    reward_scale: float = 1.0
    """Multiplies rewards before anything learns from them; not in the statistics of episodes."""
    gamma: float = 0.99
    """Discount per step."""
    gae_lambda: float = 0.95
    """Weight of longer returns in the advantage (Schulman et al., 2016)."""
    clip_range: float = 0.2
    """epsilon: distance of the probability ratio from 1 at which its gradient is clipped."""
    value_clip_range: float | None = None
    """Clip the new value to within this of the old one in the loss; `null` does not clip."""
    value_coef: float = 0.5
    """Weight of the value loss, (V - target)^2 / 2."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    bounds_loss_coef: float = 0.0
    """Weight of a penalty for means of continuous actions beyond 1.1, (|mean| - 1.1)^2 summed over dimensions."""
    max_grad_norm: float | None = 0.5
    """Largest 2-norm of the global gradient; `null` does not clip."""
    target_kl: float | None = None
    """Stop the epochs of an update once the KL of an epoch over all ranks exceeds this."""
    normalize_advantage: bool = True
    """Normalize the advantages of a rollout, over all ranks, to mean 0 and standard deviation 1."""
    normalize_observation: bool = False
    """Normalize observations by their running mean and standard deviation, pooled over all ranks, frozen during a
    rollout."""
    symmetry: str | None = None
    """Your function `module:function` or `file.py:function` that adds mirrored copies to each minibatch."""
    observation_limit: float = 10.0
    """Normalized observations are clipped to this many standard deviations."""
    normalize_value: bool = False
    """Have the value network predict targets normalized by their running mean and standard deviation, pooled over all
    ranks."""
    value_limit: float | None = None
    """`normalize_value` only: clip predictions and normalized targets to this many standard deviations; `null` does not
    clip."""
    normalize_return: bool = False
    """Divide rewards by the running standard deviation of the discounted return, pooled over all ranks."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""

    def __post_init__(self) -> None:
        """Refuse values that cannot train."""
        checks.at_least(self, 1, "num_steps", "num_epochs", "num_minibatches")
        checks.fraction(self, "gamma", "gae_lambda")
        checks.limit(self, "value_clip_range", "max_grad_norm", "target_kl", "value_limit")
        checks.number(self, "num_steps", "clip_range", "observation_limit")
        checks.number_or_none(self, "sequence_length")
        if self.sequence_length is not None and (self.sequence_length < 1 or self.num_steps % self.sequence_length):
            raise ConfigError(
                f"sequence_length={self.sequence_length} does not divide num_steps={self.num_steps}; change one of them"
            )
        checks.positive(self, "learning_rate", "desired_kl", "adam_eps", "reward_scale")
        for name in ("clip_range", "observation_limit"):  # infinite: not clipped
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be greater than 0")
        lowest, highest = ADAPTIVE_RATES
        if self.learning_rate_schedule == "adaptive" and not lowest <= self.learning_rate <= highest:
            raise ConfigError(
                f"learning_rate={self.learning_rate:g} is not from 1e-6 to 1e-2, between which "
                "learning_rate_schedule=adaptive moves it; use such a rate, or another schedule"
            )
        if self.adapt_before_step and self.adapt_every != "minibatch":
            raise ConfigError(f"adapt_before_step=true needs adapt_every=minibatch, not {self.adapt_every}")
        if self.symmetry is not None and self.kl_reference != "rollout":
            raise ConfigError(f"symmetry={self.symmetry} and kl_reference={self.kl_reference}: leave one of them out")
        checks.at_least(self, 0, "value_coef", "entropy_coef", "bounds_loss_coef")

    @property
    def steps_of_sequences(self) -> int:
        """Steps of the sequences that a recurrent policy learns from."""
        if self.sequence_length is not None:
            return self.sequence_length
        return max(steps for steps in range(1, _LONGEST_SEQUENCE + 1) if self.num_steps % steps == 0)

    @property
    def adapts_at(self) -> str:
        """When an adaptive learning rate changes: after an `epoch` or a `minibatch`, or before a `step`."""
        return "step" if self.adapt_before_step else self.adapt_every

    def minibatch_rows(self, shard_envs: int, num_shards: int) -> int:
        """Transitions of one shard's part of a minibatch (N)."""
        del num_shards  # each shard shuffles its own rollout
        rows = shard_envs * self.num_steps
        if rows % self.num_minibatches:
            divisors = [count for count in range(1, rows + 1) if rows % count == 0]
            nearest = [count for count in divisors if count < self.num_minibatches][-1:]
            nearest += [count for count in divisors if count > self.num_minibatches][:1]
            raise ConfigError(
                f"num_minibatches={self.num_minibatches} does not divide a shard's {rows} transitions "
                f"({shard_envs} environments x num_steps={self.num_steps}); use {' or '.join(map(str, nearest))}, or "
                f"change num_steps ({WHAT_SHARDS_ARE})"
            )
        return rows // self.num_minibatches

    def gradient_steps(self, num_envs: int) -> float:
        """Gradient steps per rollout."""
        del num_envs
        return self.num_epochs * self.num_minibatches
