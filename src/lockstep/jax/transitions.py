"""Transitions sampled from a replay buffer, as pytrees of arrays.

Shapes: N transitions of a shard's part of a minibatch, O observation.
"""

from typing import Any, NamedTuple

import numpy as np

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
