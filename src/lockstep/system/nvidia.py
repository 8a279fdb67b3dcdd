"""Whether this machine has a GPU of NVIDIA's, found without a framework."""

import itertools
import os
from importlib.util import find_spec
from pathlib import Path

DRIVER = Path("/proc/driver/nvidia/version")
"""The driver's own account of its version."""
_DEVICES = Path("/dev")
_WSL = Path("/usr/lib/wsl/lib/libcuda.so.1")
"""The driver of programs in Windows' Subsystem for Linux, which has no devices of its own."""
_JAX_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


def nvidia_gpu_present() -> bool:
    """Whether a GPU can be used from here; a container may have another one than the first."""
    return _device_files() > 0 or DRIVER.exists() or _WSL.exists()


def num_gpus() -> int:
    """GPUs that programs started from here may use; in Windows' Subsystem for Linux 1, unless chosen by their numbers.

    A driver without devices counts nothing otherwise: a container sees that of the machine, also without its GPUs.
    """
    chosen = chosen_gpus()
    return len(chosen) if chosen is not None else _device_files() or int(_WSL.exists())


def _device_files() -> int:
    return sum(path.name.removeprefix("nvidia").isdecimal() for path in _DEVICES.glob("nvidia*"))


def jax_finds_gpu() -> bool:
    """Whether JAX would compute on a GPU by default, determined without importing it."""
    if os.environ.get("JAX_PLATFORMS", "").startswith("cpu") or chosen_gpus() == []:
        return False
    return nvidia_gpu_present() and any(find_spec(name) for name in _JAX_PLUGINS)


def chosen_gpus() -> list[str] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES names, up to the first that means none, as CUDA reads it; None: all."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return None
    named = (name.strip() for name in chosen.split(","))
    return list(itertools.takewhile(lambda name: name not in ("", "-1"), named))
