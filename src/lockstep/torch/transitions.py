"""Minibatches of Q-learning: transitions drawn from a replay buffer, as tensors.

Shapes: N transitions of a shard's part of a minibatch, O observation.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from lockstep.algorithms.dqn import DQNConfig
from lockstep.envs.spec import EnvSpec
from lockstep.experience.replay import Transitions
from lockstep.torch.value_losses import importance_weight

_KINDS = {"uint8": torch.uint8, "float32": torch.float32}


@dataclass(slots=True)
class TransitionBatch:
    """Transitions of one shard [N]."""

    observation: Tensor
    action: Tensor
    reward: Tensor
    """Sum of gamma^k r_k over the steps before the target bootstraps."""
    next_observation: Tensor
    discount: Tensor
    """gamma to the number of those steps; 0 where the episode terminated within them."""
    weight: Tensor
    """Importance weight, not yet divided by the largest of all shards."""

    @staticmethod
    def of(drawn: Transitions, weight: Tensor, device: torch.device) -> "TransitionBatch":
        """Copy transitions to the device."""
        arrays = (drawn.observation, drawn.action, drawn.return_, drawn.next_observation, drawn.discount)
        columns = [torch.from_numpy(array).to(device) for array in arrays]
        return TransitionBatch(*columns, weight=weight.to(device))

    @staticmethod
    def blank(spec: EnvSpec, rows: int, device: torch.device) -> "TransitionBatch":
        """Rows of zeros."""
        kind = _KINDS[spec.observation_dtype.__name__]
        before, after = (torch.zeros(rows, *spec.observation_shape, dtype=kind, device=device) for _ in range(2))
        action = torch.zeros(rows, dtype=torch.int64, device=device)
        reward, discount, weight = (torch.zeros(rows, device=device) for _ in range(3))
        return TransitionBatch(before, action, reward, after, discount, weight)

    def rows(self, first: int, count: int) -> "TransitionBatch":
        """`count` consecutive rows."""
        return TransitionBatch(*(column[first : first + count] for column in self.columns().values()))

    def columns(self) -> dict[str, Tensor]:
        """All columns by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def weighing(config: DQNConfig, num_shards: int, size: int, fraction: float) -> Callable[[Transitions], Tensor]:
    """The function that computes importance weights [N], not yet divided by the largest weight of all shards.

    Args:
        config: with or without prioritized replay.
        num_shards: each draws an equal part of a minibatch from its own replay buffer.
        size: transitions in the replay buffers of all shards.
        fraction: of the run that is completed.
    """
    if not config.prioritized:
        return lambda drawn: torch.ones(len(drawn.index))
    exponent = config.importance_exponent + (1.0 - config.importance_exponent) * fraction
    return lambda drawn: importance_weight(torch.from_numpy(drawn.probability) / num_shards, size, exponent).float()
