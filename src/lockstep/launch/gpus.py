"""The GPUs of this machine, found without importing a framework where possible."""

import os
import re
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from lockstep.system.nvidia import DRIVER, num_gpus, nvidia_gpu_present

_CUDA_TORCH = "install a CUDA build instead; https://pytorch.org/get-started/locally has the command for your driver"


_MPS_FOLDER = "/tmp/nvidia-mps"
"""Where programs look for the Multi-Process Service, unless CUDA_MPS_PIPE_DIRECTORY names another folder."""
_MPS_DAEMON = "nvidia-cuda-mps-control"


def driver_version() -> str | None:
    """The version of NVIDIA's driver, as `560.35.03`; None where the system does not show it."""
    match = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", DRIVER.read_text()) if DRIVER.exists() else None
    return match[0] if match else None


def multi_process_service() -> str:
    """Whether NVIDIA MPS is on, in a sentence. With it, kernels of several processes run on a GPU at the same time."""
    given = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    folder = Path(given or _MPS_FOLDER)
    daemons = [process.pid for process in psutil.process_iter(["name"]) if process.info["name"] == _MPS_DAEMON]
    piped = (folder / "control").exists()
    if piped and daemons:
        return f"MPS is on (pid {daemons[0]}, {folder}): kernels of ranks that share a GPU run at the same time"
    if piped:
        return f"MPS may be on: {folder} has a control pipe, whose daemon is outside of this container or has ended"
    if daemons:
        where = f"CUDA_MPS_PIPE_DIRECTORY={given}" if given else f"CUDA_MPS_PIPE_DIRECTORY is not set, and {folder}"
        return f"MPS runs (pid {daemons[0]}), and is not used from here: {where} has no control pipe"
    return "MPS is off: ranks that share a GPU (share_gpus=true) take turns on it"


def visible_gpus(framework: str = "torch") -> int:
    """The number of GPUs that the framework can use.

    JAX is not imported: it allocates memory on every GPU, which belongs to the ranks. The GPUs of the driver count
    instead, if a GPU plugin of JAX is installed.
    """
    if not nvidia_gpu_present() or find_spec(framework) is None:
        return 0
    if framework == "jax":
        return num_gpus() if jax_plugins() else 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def installed_gpus(framework: str = "torch") -> int:
    """The number of GPUs of the driver, if the framework was built for them; imports no framework."""
    if not nvidia_gpu_present():
        return 0
    return num_gpus() if (jax_plugins() if framework == "jax" else _torch_has_cuda()) else 0


def _torch_has_cuda() -> bool:
    """Whether the torch that is installed was built for NVIDIA GPUs, read from its files."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    built = re.search(r"^cuda\b.*= *(\S+)", Path(spec.origin).with_name("version.py").read_text(), re.MULTILINE)
    return built is not None and built[1] != "None"


def jax_plugins() -> list[str]:
    """The installed plugins of JAX, which support other devices than CPUs: `jax-cuda12-plugin 0.10.2`."""
    versions = {
        entry.dist.name: entry.dist.version for entry in entry_points(group="jax_plugins") if entry.dist is not None
    }
    return [f"{name} {version}" for name, version in sorted(versions.items())]


def cpu_only_torch() -> str | None:
    """A warning if this machine has a GPU and torch cannot use any."""
    if not nvidia_gpu_present() or find_spec("torch") is None:
        return None
    import torch

    if torch.cuda.is_available():
        return None
    built: Any = torch.version.cuda  # pyright: ignore[reportUnknownMemberType]
    if built is None:
        return f"this machine has an NVIDIA GPU, but torch {torch.__version__} is built for CPUs only: {_CUDA_TORCH}"
    return f"this machine has an NVIDIA GPU, but torch {torch.__version__} (CUDA {built}) cannot use it: see nvidia-smi"
