"""What Q-learning learns from: transitions drawn from a replay, as arrays.

Shapes: N transitions of a shard's part of a minibatch, O observation.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from lockstep.algorithms.dqn import DQNConfig
from lockstep.envs.spec import EnvSpec
from lockstep.experience.replay import Transitions


class TransitionBatch(NamedTuple):
    """Transitions of one shard [N]; a pytree. Made of numpy's arrays, inside a compiled function of JAX's."""

    observation: Any
    action: Any
    reward: Any
    """The sum of gamma^k r_k over the steps before the target bootstraps."""
    next_observation: Any
    discount: Any
    """gamma to the number of those steps; 0 where the episode terminated within them."""
    weight: Any
    """Importance of a row, not yet divided by the largest of all shards."""

    @staticmethod
    def of(drawn: Transitions, weight: np.ndarray) -> "TransitionBatch":
        """What a replay gave."""
        action = drawn.action.astype(np.int32)
        return TransitionBatch(drawn.observation, action, drawn.return_, drawn.next_observation, drawn.discount, weight)

    @staticmethod
    def blank(spec: EnvSpec, rows: int) -> "TransitionBatch":
        """Rows of zeros, each of weight 1."""
        before, after = np.zeros((2, rows, *spec.observation_shape), spec.observation_dtype)
        reward, discount = np.zeros((2, rows), np.float32)
        return TransitionBatch(before, np.zeros(rows, np.int32), reward, after, discount, np.ones(rows, np.float32))


class Part(NamedTuple):
    """What one shard learns from in a gradient step; a pytree."""

    batch: TransitionBatch
    noise: Any
    """Standard normal numbers of noisy layers, the same for all shards; None without such layers."""
    noise_of_target: Any
    noise_of_judge: Any
    """Of the network that learns, where it chooses the next action."""


def weighing(config: DQNConfig, num_shards: int, size: int, fraction: float) -> Callable[[Transitions], np.ndarray]:
    """What a drawn row [N] weighs in the loss, not yet divided by the largest weight of all shards.

    w_i = (size P(i))^-beta, P(i) = p_i / (K sum_shard p) of K shards (Schaul et al., 2016, arXiv:1511.05952)

    On the host, in float64, as the replay's probabilities are.

    Args:
        config: whether and how far the way of drawing is corrected for.
        num_shards: each draws an equal part of a minibatch from its own replay.
        size: transitions in the replays of all shards.
        fraction: of the run, which is behind.
    """
    if not config.prioritized:
        return lambda drawn: np.ones(len(drawn.index), np.float32)
    beta = config.importance_exponent + (1.0 - config.importance_exponent) * fraction
    return lambda drawn: ((size * drawn.probability / num_shards) ** -beta).astype(np.float32)
