"""The profiler of PyTorch for `lockstep train --profile`."""

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import torch

from lockstep.errors import ConfigError


class TorchTracer:
    """Records operations of the CPU, and kernels of a GPU, of this rank.

    Args:
        device: of this rank.

    Raises:
        ConfigError: this build of PyTorch has no profiler.
    """

    def __init__(self, device: torch.device) -> None:
        from torch import profiler

        if not profiler.kineto_available():
            raise ConfigError("--profile needs Kineto, which this build of PyTorch does not have; leave --profile out")
        self._device = device
        activities = [profiler.ProfilerActivity.CPU]
        activities += [profiler.ProfilerActivity.CUDA] if device.type == "cuda" else []
        self._profiler = profiler.profile(activities=activities)

    def start(self) -> None:
        """Start recording."""
        self._profiler.start()

    def mark(self, name: str) -> None:
        """Record a short event with this name."""
        with torch.profiler.record_function(name):
            pass

    def stop(self) -> list[dict[str, Any]]:
        """Stop; the events since `start` in Chrome's format."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._profiler.stop()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "trace.json")
            self._profiler.export_chrome_trace(str(file))
            return msgspec.json.decode(file.read_bytes())["traceEvents"]
