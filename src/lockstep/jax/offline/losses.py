"""Losses that the algorithms on logged data share, per row, without a mean.

Shapes: N rows of a shard's part of a minibatch, C outcomes (the reward, then each metric).
"""

import jax.numpy as jnp
from jax import Array

from lockstep.algorithms.all import OfflineConfig
from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.jax.offline.batch import LoggedBatch
from lockstep.jax.value_losses import squared


def discount_of(config: OfflineConfig, batch: LoggedBatch) -> Array:
    """The discount of the next decision [N]: gamma ** steps, or gamma ** (time / unit); 0 after a terminal state."""
    exponent = batch.steps
    if isinstance(config, OfflineDQNConfig) and config.use_time_diff:
        exponent = batch.time_diff / config.time_diff_unit
    return batch.not_terminal * jnp.float32(config.gamma) ** exponent


def model_losses(
    reward: Array, value: Array, following: Array, batch: LoggedBatch, config: OfflineConfig
) -> list[Array]:
    """Losses [N] of the models of the reward and of the policy's value.

    With o = (reward, metrics), R(s, a) is fitted to o and Q_pi(s, a) to o + discount E Q'_pi(s', .). This is expected
    SARSA (van Seijen et al., 2009): Q_pi is the action value of the policy pi that is being learned.

    Args:
        reward: R(s, a) [N, C].
        value: Q_pi(s, a) [N, C].
        following: E Q'_pi(s', .) under pi [N, C]; must carry no gradient.
        batch: rows of one step.
        config: of the discount.
    """
    outcome = jnp.concatenate([batch.reward[:, None], batch.metrics], -1)
    goal = outcome + discount_of(config, batch)[:, None] * following
    return [squared(error).mean(-1) for error in (reward - outcome, value - goal)]
