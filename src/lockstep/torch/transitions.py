"""Minibatches of learning from a replay buffer: transitions drawn from a replay buffer, as tensors.

Shapes: N transitions of a shard's part of a minibatch, O observation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lockstep.envs.spec import EnvSpec
from lockstep.experience.replay import Transitions
from lockstep.torch.batch import RowBatch
from lockstep.torch.transfer import CopyStream

_KINDS = {"uint8": torch.uint8, "float32": torch.float32}


@dataclass(slots=True)
class TransitionBatch(RowBatch):
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
    noise: Tensor | None = None
    """Standard normal noise of the actions to draw, [N, M, D] for M actions, if there are any."""

    @staticmethod
    def of(
        drawn: Transitions, weight: np.ndarray, copies: CopyStream, noise: np.ndarray | None = None
    ) -> "TransitionBatch":
        """Copy transitions to the device, where their observations may already be."""
        arrays = {"action": drawn.action, "reward": drawn.return_, "discount": drawn.discount, "weight": weight}
        if noise is not None:
            arrays["noise"] = noise
        tensors = {"observation": drawn.observation, "next_observation": drawn.next_observation}
        if not isinstance(drawn.observation, Tensor):
            arrays, tensors = tensors | arrays, {}
        copied = copies.copy([*arrays.values()])
        return TransitionBatch(**tensors, **dict(zip(arrays, copied, strict=True)))

    @staticmethod
    def blank(spec: EnvSpec, rows: int, device: torch.device, num_actions: int = 0) -> "TransitionBatch":
        """Rows of zeros, with noise of `num_actions` actions (M)."""
        kind = _KINDS[spec.observation_dtype.__name__]
        before, after = (torch.zeros(rows, *spec.observation_shape, dtype=kind, device=device) for _ in range(2))
        discrete = spec.action.kind == "discrete"
        shape = (rows,) if discrete else (rows, spec.action.width)
        action = torch.zeros(shape, dtype=torch.int64 if discrete else torch.float32, device=device)
        reward, discount, weight = (torch.zeros(rows, device=device) for _ in range(3))
        noise = torch.zeros(rows, num_actions, spec.action.width, device=device) if num_actions else None
        return TransitionBatch(before, action, reward, after, discount, weight, noise)


def priorities_to_host(skipped: Tensor, priorities: Sequence[Tensor]) -> list[np.ndarray] | None:
    """The priorities [N] of each shard's part of a minibatch; None if the gradient step was skipped.

    The host waits for the device once.
    """
    on_host = torch.cat([skipped.float().reshape(1), *priorities]).cpu().numpy()
    if on_host[0]:
        return None
    ends = np.cumsum([len(priority) for priority in priorities])
    return np.split(on_host[1:], ends[:-1])
