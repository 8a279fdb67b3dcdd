"""Device, threads and arithmetic modes of this process."""

import os
from typing import Any, cast

import torch
from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingTypeStubs]

from lockstep.errors import ConfigError
from lockstep.run import AnyRun
from lockstep.system.cores import WORTH_A_SECOND_THREAD, threads_are_chosen, usable_cores
from lockstep.system.launchers import hint_on_gpus
from lockstep.world import World


def pin(run: AnyRun, world: World) -> None:
    """Set threads and deterministic kernels, before any computation.

    A run that is not pinned starts with one thread, unless the user decides: `share_cores` may set more once the work
    is known. Orthogonal initialization gives other bits on several threads, and the number at the start of a process
    differs from the one that an earlier run has left.
    """
    on_gpu = torch.cuda.is_available() and run.device != "cpu"
    if on_gpu and (run.tf32 is not None or world.pinned):
        allow_tf32(bool(run.tf32))
    if not world.pinned:
        share_cores(world, 0)
        return
    torch.set_num_threads(run.shard_threads)
    threadpool_limits(run.shard_threads)  # numpy's matrix products
    if on_gpu:
        use_deterministic_kernels()


def use_deterministic_kernels() -> None:
    """Let GPUs add in a fixed order, also in the backward pass of convolutions, whose fastest kernels use atomics."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
    torch.use_deterministic_algorithms(True)
    # Otherwise `torch.empty` launches a kernel that fills the memory. Nothing here reads memory before it is written.
    cast(Any, torch.utils.deterministic).fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False


def allow_tf32(allowed: bool) -> None:
    """Set whether GPUs may round the factors of float32 products to TensorFloat-32."""
    cudnn: Any = torch.backends.cudnn
    if hasattr(cudnn, "conv"):  # from torch 2.9 on, which warns about the older names
        precision = "tf32" if allowed else "ieee"
        for part in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn):
            part.fp32_precision = precision
    else:
        torch.backends.cuda.matmul.allow_tf32 = allowed
        cudnn.allow_tf32 = allowed


def share_cores(world: World, work: int) -> None:
    """Set the number of threads: an equal part of the host's cores, or 1 if a gradient step is too little `work`.

    No effect where the user (OMP_NUM_THREADS) or `shard_threads` decides.
    """
    if world.pinned or threads_are_chosen():
        return
    threads = max(1, usable_cores() // world.local_size) if work >= WORTH_A_SECOND_THREAD else 1
    torch.set_num_threads(threads)
    threadpool_limits(threads)


def device_of(world: World, device: str | torch.device, *, share_gpus: bool = False) -> torch.device:
    """The device of this rank.

    Args:
        world: the ranks.
        device: the setting.
        share_gpus: whether several ranks may be on one GPU.

    Raises:
        ConfigError: on *every* rank of a host with more ranks than GPUs that may not share them.
    """
    device = str(device)
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device={device} must be auto, cpu or cuda: the rank decides which GPU it has")
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if count == 0:
        raise ConfigError("device=cuda, but torch sees no GPU; use device=cpu, or `lockstep doctor` to see why")
    if world.local_size > count and not share_gpus:
        raise ConfigError(
            f"{world.local_size} processes on a machine where torch sees {count} GPU(s); "
            f"use --nproc_per_node={count} (--ranks {count}), device=cpu, or for tests share_gpus=true"
            + hint_on_gpus(world.launcher)
        )
    return torch.device("cuda", world.local_rank % count)


def backend_of(device: torch.device, backend: str, *, share_gpus: bool = False) -> str:
    """The backend of collectives; `auto` is nccl for GPUs that are not shared, else gloo."""
    if backend not in ("auto", "gloo", "nccl"):
        raise ConfigError(f"backend={backend} must be auto, gloo or nccl")
    if share_gpus and backend == "nccl":
        raise ConfigError("share_gpus=true with backend=nccl: NCCL refuses two ranks on one GPU; use backend=gloo")
    if share_gpus:
        return "gloo"
    if backend == "nccl" and device.type == "cpu":
        raise ConfigError("backend=nccl needs GPUs, but this rank computes on the CPU; use backend=gloo")
    return backend if backend != "auto" else "nccl" if device.type == "cuda" else "gloo"


def describe(device: torch.device) -> str:
    """`cpu`, or `cuda:0 (name of the GPU)`."""
    return "cpu" if device.type == "cpu" else f"{device} ({torch.cuda.get_device_name(device)})"


def kind_of(device: torch.device) -> str:
    """`cpu`, or the name of the GPU; results of ranks with equal kinds can be compared."""
    return "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)


def peak_memory(device: torch.device) -> int | None:
    """The most memory of a GPU that tensors of this process have used so far, in bytes; None on a CPU."""
    return None if device.type == "cpu" else torch.cuda.max_memory_allocated(device)


def free_memory(device: torch.device) -> int | None:
    """Bytes of a GPU's memory that no process uses; None on a CPU."""
    return None if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
