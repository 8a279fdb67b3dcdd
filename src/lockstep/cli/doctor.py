"""`lockstep doctor`: the devices, packages and network of this machine, and a measured all-reduce."""

import os
import platform
import shutil
import socket
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import psutil

from lockstep.distributed.network.interfaces import addresses
from lockstep.envs.extras import install_line
from lockstep.launch import gpus
from lockstep.system.cores import usable_cores
from lockstep.system.memory import usable_memory

_SIZES = (1_000, 100_000, 1_000_000)  # float32 numbers: a small policy, a large one, a convolutional network
_COPIED = 64 << 20
"""Bytes of the copies between the host and a GPU."""
_CUDA_JAX = "pip install 'jax[cuda13]' or 'jax[cuda12]', whichever your driver has"
_OPTIONAL = {  # import name: (distribution, purpose, how to install it)
    "torch": ("torch", "the PyTorch backend", "pip install 'lockstep-rl[torch]'"),
    "jax": ("jax", "the JAX backend", "pip install 'lockstep-rl[jax]'"),
    "optax": ("optax", "the JAX backend's optimizers", "pip install 'lockstep-rl[jax]'"),
    "gymnasium": ("gymnasium", "Gymnasium tasks", "pip install gymnasium"),
    "pygame": ("pygame", "pictures of Gymnasium's classic tasks", install_line("pygame")),
    "mujoco": ("mujoco", "MuJoCo tasks", install_line("mujoco")),
    "Box2D": ("box2d", "LunarLander and other Box2D tasks", install_line("Box2D")),
    "pettingzoo": ("pettingzoo", "tasks of several agents", install_line("pettingzoo")),
    "ale_py": ("ale-py", "Atari tasks", "pip install 'lockstep-rl[atari]'"),
    "tensorboard": ("tensorboard", "TensorBoard files in run directories", "pip install tensorboard"),
    "wandb": ("wandb", "runs in Weights & Biases", "pip install 'lockstep-rl[wandb]'"),
    "mlflow": ("mlflow-skinny", "runs in MLflow", "pip install 'lockstep-rl[mlflow]'"),
    "isaaclab": ("isaaclab", "Isaac Lab tasks", "`lockstep tasks Isaac` prints the lines, for a CPU and a GPU"),
}


def examine(ranks: int = 2) -> int:
    """Print the report; return 1 if the all-reduce failed, else 0."""
    for title, lines in (("machine", _machine()), ("devices", _devices()), ("packages", _packages())):
        _show(title, lines)
    _show("interfaces", _interfaces())
    any_failed = False
    for framework in ("torch", "jax"):
        if find_spec(framework) is not None:
            lines, failed = _all_reduce(ranks, framework)
            any_failed |= failed
            where = "(CPU ranks: through shared memory)"
            _show(f"all-reduce between {ranks} ranks of this machine, {framework} {where}", iter(lines))
    _show("missing", _missing())
    return int(any_failed)


def measure_all_reduce(rank: int, device: str, sizes: tuple[int, ...], repeats: int) -> dict[str, Any]:
    """Measure an all-reduce; *collective*. Returns median seconds by number of float32 values."""
    import torch

    from lockstep.torch.comm import Comm
    from lockstep.world import World

    with Comm(World.from_environment(), device=device, timeout_s=60.0, startup_timeout_s=60.0) as comm:
        seconds: dict[int, float] = {}
        for size in sizes:
            value, took = torch.ones(size, device=comm.device), list[float]()
            for _ in range(repeats):
                start = time.perf_counter()
                total = comm.sum(value)
                float(total[0])  # waits for the GPU
                took.append(time.perf_counter() - start)
            seconds[size] = sorted(took)[repeats // 2]
        return {"rank": rank, "backend": comm.backend, "device": str(comm.device), "seconds": seconds}


def measure_jax_all_reduce(rank: int, device: str, sizes: tuple[int, ...], repeats: int) -> dict[str, Any]:
    """`measure_all_reduce` in JAX, inside a compiled function as in training, with one shard per rank."""
    _disable_preallocation()
    import jax
    import numpy as np

    from lockstep.jax.comm import Comm
    from lockstep.world import World

    with Comm(World.from_environment(), device=device, timeout_s=60.0, startup_timeout_s=60.0) as comm:

        def add(shared: Any, own: Any) -> tuple[Any, Any]:
            return comm.sum_shards(own), own

        seconds: dict[int, float] = {}
        for size in sizes:
            compiled, took = comm.spmd(add), list[float]()
            given: tuple[Any, Any] = comm.replicate(np.zeros(size, np.float32)), comm.shard([np.ones(size, np.float32)])
            for _ in range(repeats + 1):
                start = time.perf_counter()
                given = cast(Any, jax).block_until_ready(compiled(*given))
                took.append(time.perf_counter() - start)
            seconds[size] = sorted(took[1:])[repeats // 2]  # the first compiles
        return {"rank": rank, "backend": comm.backend, "device": comm.device, "seconds": seconds}


def _disable_preallocation() -> None:
    """Keep JAX from allocating most of a GPU's memory."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def _show(title: str, lines: Iterator[str]) -> None:
    print(title)
    for line in lines:
        print(f"  {line}", flush=True)


def _machine() -> Iterator[str]:
    yield f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}"
    yield f"{usable_cores()} usable cores of {os.cpu_count()}"
    free = usable_memory()
    usable = f", {free / 2**30:.1f} GiB of it usable now (replays need some)" if free is not None else ""
    yield f"{psutil.virtual_memory().total / 2**30:.1f} GiB memory{usable}"
    if Path("/dev/shm").is_dir():
        usage = shutil.disk_usage("/dev/shm")
        yield f"/dev/shm: {usage.free / 2**20:.0f} MiB free (NCCL needs some; CPU ranks do not)"


def _devices() -> Iterator[str]:
    if not gpus.nvidia_gpu_present():
        yield "no NVIDIA GPU: ranks compute on the CPU"
    elif driver := gpus.driver_version():
        yield f"NVIDIA driver {driver}"
        yield gpus.multi_process_service()
    for framework, lines in (("torch", _torch_devices), ("jax", _jax_devices)):
        if find_spec(framework) is not None:
            yield from lines()
        else:
            though = ", though this machine has an NVIDIA GPU" if gpus.nvidia_gpu_present() else ""
            yield f"{framework} is not installed{though}"


def _jax_devices() -> Iterator[str]:
    _disable_preallocation()
    import jax

    yield f"jax {jax.__version__}, jaxlib {version('jaxlib')} ({', '.join(gpus.jax_plugins()) or 'CPU build'})"
    try:
        found: list[Any] = cast(Any, jax).local_devices()
        for device in found:
            if device.platform != "cpu":
                yield f"jax {device.platform}:{device.local_hardware_id}: {device.device_kind}"
    except (RuntimeError, AssertionError) as error:  # JAX_PLATFORMS names no platform of this JAX, or an old driver
        why = str(error).splitlines() or [f"no device for JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS')}"]
        yield f"WARNING: JAX cannot start: {why[0]}"
        return
    if gpus.nvidia_gpu_present() and jax.default_backend() == "cpu":
        chosen = os.environ.get("JAX_PLATFORMS")
        why = f"JAX_PLATFORMS={chosen} is set" if chosen else "see nvidia-smi" if gpus.jax_plugins() else _CUDA_JAX
        yield f"WARNING: this machine has an NVIDIA GPU, but JAX computes on the CPU: {why}"
    from lockstep.jax.collectives.native import library

    how = "sums in C" if library() else "sums in Python, 2 to 3 times the delay: no C compiler is found (cc, or CC)"
    yield f"jax between CPU processes of a host: shared memory, {how}"
    yield "jax backends between processes: gloo" + (", nccl" if gpus.jax_plugins() else " (nccl needs a CUDA plugin)")


def _torch_devices() -> Iterator[str]:
    import torch
    import torch.distributed as dist

    cuda: Any = torch.version.cuda  # pyright: ignore[reportUnknownMemberType]
    yield f"torch {torch.__version__} ({f'CUDA {cuda}' if cuda else 'CPU build'})"
    yield from _torch_gpus()
    if warning := gpus.cpu_only_torch():
        yield f"WARNING: {warning}"
    available = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available(), "mpi": dist.is_mpi_available()}
    yield "torch backends: " + ", ".join(
        name if have else f"{name} (not in this torch)" for name, have in available.items()
    )


def _torch_gpus() -> Iterator[str]:
    """The GPUs that torch sees, which of them reach each other's memory, and a measured copy to each."""
    import torch
    import torch.distributed as dist

    from lockstep.torch.transfer import copy_rates

    cuda: Any = torch.cuda
    count: int = cuda.device_count() if cuda.is_available() else 0
    for index in range(count):
        properties = cuda.get_device_properties(index)
        yield f"cuda:{index}: {properties.name}, {properties.total_memory / 2**30:.0f} GiB"
        try:
            rates = copy_rates(f"cuda:{index}", _COPIED)
        except RuntimeError as error:  # its memory is in use, or the driver does not fit
            yield f"WARNING: cuda:{index} cannot be used: {str(error).splitlines()[0]}"
            continue
        yield (
            f"cuda:{index}: copies of {_COPIED >> 20} MiB at {rates['to_device']:.1f} GB/s from the host, "
            f"{rates['to_device_page_locked']:.1f} from page-locked memory, {rates['to_host']:.1f} to the host"
        )
    apart = [
        f"{one}-{other}"
        for one in range(count)
        for other in range(one + 1, count)
        if not cuda.can_device_access_peer(one, other)
    ]
    if count > 1:
        yield "peer access: " + (f"all but {', '.join(apart)}, which copy through the host" if apart else "all GPUs")
    if count and dist.is_nccl_available():
        yield f"nccl {'.'.join(str(part) for part in cuda.nccl.version())}"


def _packages() -> Iterator[str]:
    for name, (distribution, brings, _) in _OPTIONAL.items():
        if find_spec(name) is not None:
            try:
                yield f"{distribution} {version(distribution)}: {brings}"
            except PackageNotFoundError:
                yield f"{distribution}: {brings}"


def _missing() -> Iterator[str]:
    absent = [entry for name, entry in _OPTIONAL.items() if find_spec(name) is None]
    for distribution, brings, how in absent:
        yield f"{distribution} ({brings}): {how}"
    if not absent:
        yield "nothing"


def _interfaces() -> Iterator[str]:
    held = addresses()
    for _, name in socket.if_nameindex():
        state = Path(f"/sys/class/net/{name}/operstate")
        up = state.read_text().strip() if state.exists() else "unknown"
        yield f"{name}: {', '.join(held.get(name, [])) or 'no address'}" + (f" ({up})" if up != "unknown" else "")
    fabric = Path("/sys/class/infiniband")
    if fabric.is_dir():
        yield "InfiniBand: " + ", ".join(sorted(device.name for device in fabric.iterdir()))
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if name in os.environ:
            yield f"{name}={os.environ[name]} (set by you)"


def _all_reduce(ranks: int, framework: str) -> tuple[list[str], bool]:
    from lockstep.errors import ConfigError, RunError
    from lockstep.launch.local import spawn

    device = "cuda" if gpus.visible_gpus(framework) >= ranks else "cpu"
    measure = measure_jax_all_reduce if framework == "jax" else measure_all_reduce
    try:
        results = spawn(measure, ranks, (device, _SIZES, 50), timeout_s=120.0)
    except (ConfigError, RunError, OSError) as error:
        return [f"FAILED: {error}"], True
    first = results[0]
    return [
        f"{size:>9,} floats: {took * 1e6:8,.0f} us  ({first['backend']}, {first['device']})"
        for size, took in first["seconds"].items()
    ], False
