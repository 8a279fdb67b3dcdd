"""Transitions sampled from a replay buffer, as pytrees of arrays.

Shapes: N transitions of a shard's part of a minibatch, O observation.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from lockstep.algorithms.dqn import DQNConfig
from lockstep.envs.spec import EnvSpec
from lockstep.experience.replay import Transitions


class TransitionBatch(NamedTuple):
    """Transitions of one shard [N]; a pytree of numpy arrays, or of JAX's inside compiled code."""

    observation: Any
    action: Any
    reward: Any
    """The n-step return: the sum of gamma^k r_k over the steps before the bootstrap."""
    next_observation: Any
    discount: Any
    """gamma^n; 0 where the episode terminated within the n steps."""
    weight: Any
    """Importance weight, not yet divided by the largest of all shards."""

    @staticmethod
    def of(drawn: Transitions, weight: np.ndarray) -> "TransitionBatch":
        """The batch of transitions sampled from a replay buffer."""
        action = drawn.action.astype(np.int32)
        return TransitionBatch(drawn.observation, action, drawn.return_, drawn.next_observation, drawn.discount, weight)

    @staticmethod
    def blank(spec: EnvSpec, rows: int) -> "TransitionBatch":
        """Rows of zeros and weight 1."""
        before, after = np.zeros((2, rows, *spec.observation_shape), spec.observation_dtype)
        reward, discount = np.zeros((2, rows), np.float32)
        return TransitionBatch(before, np.zeros(rows, np.int32), reward, after, discount, np.ones(rows, np.float32))


class Part(NamedTuple):
    """One shard's part of a minibatch; a pytree."""

    batch: TransitionBatch
    noise: Any
    """Standard normal numbers for noisy layers, equal for all shards; None without noisy layers."""
    noise_of_target: Any
    noise_of_selector: Any
    """For the online network when it selects the next action (double Q-learning)."""


def weighing(config: DQNConfig, num_shards: int, size: int, fraction: float) -> Callable[[Transitions], np.ndarray]:
    """Importance weights of sampled rows [N], not yet divided by the largest weight of all shards.

    w_i = (size P(i))^-beta, P(i) = p_i / (K sum_shard p) of K shards (Schaul et al., 2016, arXiv:1511.05952)

    Computed on the host in float64, like the replay buffer's probabilities.

    Args:
        config: of prioritized replay.
        num_shards: K, each of which samples an equal part of a minibatch from its own buffer.
        size: transitions in the buffers of all shards.
        fraction: of the run that is completed.
    """
    if not config.prioritized:
        return lambda drawn: np.ones(len(drawn.index), np.float32)
    beta = config.importance_exponent + (1.0 - config.importance_exponent) * fraction
    return lambda drawn: ((size * drawn.probability / num_shards) ** -beta).astype(np.float32)
