"""Copies from the host to the device for which the host does not wait, and how fast copies are."""

import time
from collections.abc import Sequence

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


class CopyStream:
    """Copies to the device that overlap the work queued there before, as the previous gradient step.

    On a GPU they are on a stream of their own, and work that is queued later waits for them.

    Args:
        device: that the copies are for.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def copy(self, arrays: Sequence[np.ndarray]) -> list[Tensor]:
        """Copy arrays as `to_device` does; the host does not wait."""
        if self._stream is None:
            return [to_device(array, self.device) for array in arrays]
        with torch.cuda.stream(self._stream):
            copies = [to_device(array, self.device) for array in arrays]
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self._stream)
        for copy in copies:
            copy.record_stream(current)  # their memory is not given away before the current stream has used it
        return copies


def copy_rates(device: str, num_bytes: int, repeats: int = 5) -> dict[str, float]:
    """Gigabytes per second of copies between the host and a device, the fastest of some.

    Args:
        device: `cuda`, `cuda:1`; on a `cpu` there is only ordinary memory.
        num_bytes: of one copy.
        repeats: copies of each kind.

    Returns:
        `to_device` and `to_device_page_locked`, from ordinary and from page-locked memory, and `to_host`.
    """
    on_gpu = torch.device(device).type == "cuda"
    ordinary = torch.zeros(num_bytes, dtype=torch.uint8)
    there = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    copies = {"to_device": (ordinary, there), "to_host": (there, ordinary)}
    if on_gpu:
        copies["to_device_page_locked"] = (ordinary.pin_memory(), there)
    rates: dict[str, float] = {}
    for name, (source, target) in copies.items():
        seconds: list[float] = []
        for _ in range(repeats):
            start = time.perf_counter()
            target.copy_(source)
            if on_gpu:
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - start)
        rates[name] = round(num_bytes / min(seconds) / 1e9, 2)
    return rates
