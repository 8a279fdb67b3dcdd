"""Copies from the host to the device for which the host does not wait, and how fast copies are."""

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_MAX_BUFFERS = 16
"""Shapes of which page-locked memory is kept; evaluations have others than training."""


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to the device. The array may change afterwards, but on a CPU the tensor shares its memory.

    The copy to a GPU starts from page-locked memory, which torch's allocator reuses once the copy has ended. A plain
    `.to(device)` would wait for all work that is queued on the GPU.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class StagingBuffers:
    """Copies from the host to the device and back in each step of acting, through page-locked memory that is kept.

    The memory of one step is used again in the next: between two calls of `to_device`, call `to_host`, which waits.

    Args:
        device: that the copies are for.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._page_locked: dict[tuple[str, torch.Size, torch.dtype], Tensor] = {}

    def to_device(self, array: np.ndarray) -> Tensor:
        """Copy an array to the device; the host does not wait. On a CPU the tensor shares its memory."""
        given = torch.from_numpy(array)
        if self._device.type != "cuda":
            return given.to(self._device, non_blocking=True)
        return self._buffer("in", given).copy_(given).to(self._device, non_blocking=True)

    def to_host(self, tensor: Tensor) -> np.ndarray:
        """Copy a tensor to the host, which waits for it."""
        if self._device.type != "cuda":
            return tensor.cpu().numpy()
        buffer = self._buffer("out", tensor).copy_(tensor, non_blocking=True)
        torch.cuda.current_stream(self._device).synchronize()
        return buffer.numpy().copy()

    def _buffer(self, way: str, like: Tensor) -> Tensor:
        """Page-locked memory for a tensor of this shape."""
        key = way, like.shape, like.dtype
        if key not in self._page_locked:
            if len(self._page_locked) >= _MAX_BUFFERS:
                self._page_locked.clear()
            self._page_locked[key] = torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
        return self._page_locked[key]


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
        rates[name] = num_bytes / min(seconds) / 1e9
    return rates
