"""Checkpoints for a user's own training loop, with torch's tensors."""

from typing import Any

import numpy as np
import torch

from lockstep.session import checkpoint_manager


class CheckpointManager(checkpoint_manager.CheckpointManager):
    """Checkpoints of a user's own loop; tensors are restored on the CPU.

    `load_state_dict` of modules and optimizers copies them to their devices.
    """

    def to_numpy(self, value: Any) -> tuple[np.ndarray, str] | None:
        """Convert a tensor to an array of the same bits."""
        if not isinstance(value, torch.Tensor):
            return None
        tensor = value.detach().cpu().contiguous()
        if tensor.dtype is torch.bfloat16:  # numpy has no bfloat16
            tensor = tensor.view(torch.int16)
        return tensor.numpy(), str(value.dtype).removeprefix("torch.")

    def from_numpy(self, array: np.ndarray, kind: str) -> torch.Tensor:
        """Convert an array back to a tensor of the same bits."""
        return torch.from_numpy(array).view(getattr(torch, kind))
