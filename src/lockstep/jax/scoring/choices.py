"""Maxima and sums over the named actions that each row of a batch may choose among.

Shapes: N rows, A actions, C outcomes. `possible` is 0 where an action is impossible [N, A].
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.jax.value_losses import gather_actions

_LOWEST = float(np.finfo(np.float32).min)
"""The score of an impossible action in a softmax or an argmax. Finite, so that 0 times it is 0."""


def masked(scores: Array, possible: Array) -> Array:
    """Scores [N, A] as float32, with the lowest finite number for impossible actions."""
    return jnp.where(possible != 0, scores.astype(jnp.float32), _LOWEST)


def pick_best(values: Array, scores: Array, possible: Array) -> Array:
    """The values [N, A] of the first possible action with the highest score [N, A]; [N]."""
    return gather_actions(values, masked(scores, possible).argmax(-1))


def log_sum_exp(scores: Array, possible: Array) -> Array:
    """Log sum_a exp scores_a over the possible actions [N]."""
    return jax.nn.logsumexp(masked(scores, possible), -1)


def log_softmax(scores: Array, possible: Array) -> Array:
    """scores_a - log sum_b exp scores_b, b over the possible actions [N, A]."""
    return jax.nn.log_softmax(masked(scores, possible), -1)


def probability(scores: Array, possible: Array, config: OfflineDQNConfig) -> Array:
    """pi(a) of each action [N, A]: 1 for the best possible action, or softmax(scores / temperature)."""
    if config.policy == "greedy":
        return jax.nn.one_hot(masked(scores, possible).argmax(-1), scores.shape[1], dtype=jnp.float32)
    return jax.nn.softmax(masked(scores.astype(jnp.float32) / config.temperature, possible), -1)


def expected(values: Array, scores: Array, possible: Array, config: OfflineDQNConfig) -> Array:
    """sum_a pi(a) values_a [N, C] of values [N, A, C], for the policy pi that `probability` returns."""
    return (probability(scores, possible, config)[..., None] * values).sum(1)


def likely(logits: Array, possible: Array, threshold: float) -> Array:
    """Where an action is possible and p(a | s) / max_b p(b | s) >= threshold, b possible; bool [N, A].

    This is the rule of discrete BCQ (Fujimoto et al., 2019, arXiv:1910.01708), p = softmax(logits).
    """
    logits = masked(logits, possible)
    ratio = logits - logits.max(-1, keepdims=True)  # log (p / max p)
    return (ratio >= (np.log(threshold) if threshold > 0 else -np.inf)) & (possible != 0)
