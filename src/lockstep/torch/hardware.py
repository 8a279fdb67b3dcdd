"""Threads and arithmetic modes of this process, fixed before the first step because they change bits."""

import os

import torch
from threadpoolctl import threadpool_limits

from lockstep.cores import usable_cores
from lockstep.run import Run
from lockstep.world import World


def prepare(run: Run, world: World) -> None:
    """Set what a pinned run pins; otherwise share the cores of the host among its ranks."""
    if world.pinned:
        torch.set_num_threads(run.shard_threads)
        threadpool_limits(run.shard_threads)  # numpy's matrix products
    elif "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, usable_cores() // world.local_size))
    if world.pinned and torch.cuda.is_available() and run.device != "cpu":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False


def describe(device: torch.device) -> str:
    """`cpu`, or `cuda:0 (name of the GPU)`."""
    return "cpu" if device.type == "cpu" else f"{device} ({torch.cuda.get_device_name(device)})"
