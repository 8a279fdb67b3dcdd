"""Random numbers of the gradient steps on logged data, as tensors.

Shapes: N rows of a shard's part of a minibatch, J actions of a row, D dimensions of an action.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.experience.offline_noise import draw_noise
from lockstep.torch.batch import RowBatch
from lockstep.torch.transfer import to_device


@dataclass(slots=True)
class Noise(RowBatch):
    """Random numbers of the rows of one shard."""

    normal: Tensor
    """Standard normal [N, J, D]."""
    uniform: Tensor
    """Uniform in [-1, 1), [N, J', D]."""

    @staticmethod
    def draw(
        seed: int, shard: int, step: int, shape: tuple[int, int, int], device: torch.device, *, num_uniform: int = 0
    ) -> "Noise":
        """The numbers of one shard in one gradient step.

        Args:
            seed: of the run.
            shard: index of the shard.
            step: rows that the run has learned from before this step, all ranks together.
            shape: N, J and D.
            device: of the result.
            num_uniform: J'.
        """
        normal, uniform = draw_noise(seed, shard, step, shape, num_uniform)
        return Noise(to_device(normal, device), to_device(uniform, device))
