"""Checkpoints for a user's own training loop, with torch's tensors."""

from typing import Any

import numpy as np
import torch

from lockstep.session import checkpoint_manager

_OF_NUMPY = (torch.float16, torch.float32, torch.float64)
"""Types of real numbers that numpy has: not bfloat16, nor those of 8 bits."""


class CheckpointManager(checkpoint_manager.CheckpointManager):
    """Checkpoints of a user's own loop; tensors are restored on the CPU.

    `load_state_dict` of modules and optimizers copies them to their devices.
    """

    def to_numpy(self, value: Any, place: str) -> tuple[np.ndarray, str] | None:
        """Convert a tensor to an array of the same bits."""
        if not isinstance(value, torch.Tensor):
            return None
        tensor = value.detach().cpu().contiguous()
        if tensor.is_floating_point() and tensor.dtype not in _OF_NUMPY:
            tensor = tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int8)
        return tensor.numpy(), str(value.dtype).removeprefix("torch.")

    def from_numpy(self, array: np.ndarray, kind: str) -> torch.Tensor:
        """Convert an array back to a tensor of the same bits."""
        return torch.from_numpy(array).view(getattr(torch, kind))
