"""Copies from the host to the device for which the host does not wait."""

import numpy as np
import torch
from torch import Tensor


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to the device. The array may change afterwards, but on a CPU the tensor shares its memory.

    The copy to a GPU starts from page-locked memory, which torch's allocator reuses once the copy has ended. A plain
    `.to(device)` would wait for all work that is queued on the GPU.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
