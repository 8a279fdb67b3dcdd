"""Checkpoints for a training loop of one's own, with torch's tensors."""

from typing import Any

import numpy as np
import torch

from lockstep.session import checkpoint_manager


class CheckpointManager(checkpoint_manager.CheckpointManager):
    """Checkpoints of a loop of your own; tensors come back as tensors, on the CPU.

    `load_state_dict` of modules and optimizers brings them to their devices.
    """

    def to_numpy(self, value: Any) -> tuple[np.ndarray, str] | None:
        """The bits of a tensor."""
        if not isinstance(value, torch.Tensor):
            return None
        tensor, kind = value.detach().cpu().contiguous(), str(value.dtype).removeprefix("torch.")
        if tensor.dtype is torch.bfloat16:  # which numpy does not know
            tensor = tensor.view(torch.int16)
        return tensor.numpy(), kind

    def from_numpy(self, array: np.ndarray, kind: str) -> torch.Tensor:
        """The tensor of these bits."""
        return torch.from_numpy(array).view(getattr(torch, kind))
