"""Transitions sampled from a replay buffer, as pytrees of arrays.

Shapes: N transitions of a shard's part of a minibatch, O observation.
"""

from typing import Any, NamedTuple, TypeVar

import numpy as np

from lockstep.envs.spec import EnvSpec
from lockstep.experience.replay import Transitions
from lockstep.jax.continuous_policy import ContinuousPolicy


class TransitionBatch(NamedTuple):
    """Transitions of one shard [N]; a pytree of numpy arrays, or of JAX's inside compiled code."""

    observation: Any
    """[N, *O]; with `replay_device` the indices of its rows on the device, until `device_rows.observed` reads them."""
    action: Any
    reward: Any
    """The n-step return: the sum of gamma^k r_k over the steps before the bootstrap."""
    next_observation: Any
    discount: Any
    """gamma^k after the k <= n steps that were taken; 0 where the episode terminated within them."""
    weight: Any
    """Importance weight, not yet divided by the largest of all shards."""
    noise: Any = None
    """Standard normal noise of the actions to draw, [N, M, D] for M actions, if there are any."""

    @staticmethod
    def of(drawn: Transitions, weight: np.ndarray, noise: np.ndarray | None = None) -> "TransitionBatch":
        """The batch of transitions sampled from a replay buffer."""
        action = drawn.action if drawn.action.dtype == np.float32 else drawn.action.astype(np.int32)
        columns = (drawn.observation, action, drawn.return_, drawn.next_observation, drawn.discount)
        return TransitionBatch(*columns, weight, noise)

    @staticmethod
    def blank(spec: EnvSpec, rows: int, num_actions: int = 0) -> "TransitionBatch":
        """Rows of zeros and weight 1, with noise of `num_actions` actions (M)."""
        before, after = np.zeros((2, rows, *spec.observation_shape), spec.observation_dtype)
        reward, discount = np.zeros((2, rows), np.float32)
        discrete = spec.action.kind == "discrete"
        action = np.zeros(rows, np.int32) if discrete else np.zeros((rows, spec.action.width), np.float32)
        noise = np.zeros((rows, num_actions, spec.action.width), np.float32) if num_actions else None
        return TransitionBatch(before, action, reward, after, discount, np.ones(rows, np.float32), noise)


class Part(NamedTuple):
    """One shard's part of a minibatch; a pytree."""

    batch: TransitionBatch
    noise: Any
    """Standard normal numbers for noisy layers, equal for all shards; None without noisy layers."""
    noise_of_target: Any
    noise_of_selector: Any
    """For the online network when it selects the next action (double Q-learning)."""


class ActorCriticPart(NamedTuple):
    """One shard's part of a minibatch of SAC or TD3; a pytree."""

    batch: TransitionBatch
    seed: Any = None
    """uint32, of the shard's dropout masks; None without dropout."""
    target_critics: Any = None
    """Indices of the critics whose minimum is the target, equal for all shards; None: all critics."""

    @staticmethod
    def blank(policy: ContinuousPolicy, rows: int, num_actions: int) -> "ActorCriticPart":
        """Rows of zeros and weight 1, of the shapes and types of a drawn part."""
        c = policy.algorithm
        seed = np.uint32(0) if c.dropout else None
        chosen = None if c.target_critics is None else np.arange(c.target_critics, dtype=np.int32)
        return ActorCriticPart(TransitionBatch.blank(policy.spec, rows, num_actions), seed, chosen)


SomePart = TypeVar("SomePart", Part, ActorCriticPart)
