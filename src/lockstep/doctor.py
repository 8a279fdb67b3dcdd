"""What this machine can do, what is missing and how to get it. `lockstep doctor` prints it."""

import os
import platform
import shutil
import socket
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lockstep.cores import usable_cores
from lockstep.memory import usable_memory
from lockstep.network.interfaces import addresses

_SIZES = (1_000, 100_000, 1_000_000)  # float32 numbers: a small policy, a large one, a convolutional network
_CUDA_TORCH = "install a CUDA build instead; https://pytorch.org/get-started/locally has the command for your driver"
_OPTIONAL = {  # import name: (distribution, what it brings, how to get it)
    "torch": ("torch", "the PyTorch backend", "pip install 'lockstep-rl[torch]'"),
    "jax": ("jax", "JAX arrays", "pip install 'lockstep-rl[jax]'"),
    "gymnasium": ("gymnasium", "Gymnasium tasks", "pip install gymnasium"),
    "pygame": ("pygame", "pictures of Gymnasium's classic tasks", "pip install 'gymnasium[classic-control]'"),
    "mujoco": ("mujoco", "MuJoCo tasks", "pip install 'gymnasium[mujoco]'"),
    "Box2D": ("box2d", "LunarLander and other Box2D tasks", "pip install 'gymnasium[box2d]'"),
    "ale_py": ("ale-py", "Atari tasks", "pip install 'lockstep-rl[atari]'"),
    "tensorboard": ("tensorboard", "TensorBoard files in run directories", "pip install tensorboard"),
    "isaaclab": ("isaaclab", "Isaac Lab tasks", "https://isaac-sim.github.io/IsaacLab (needs an NVIDIA GPU)"),
}


def nvidia_gpu_present() -> bool:
    """Whether this machine has an NVIDIA GPU, asked without loading a framework."""
    return any(Path(path).exists() for path in ("/dev/nvidia0", "/proc/driver/nvidia/version"))


def visible_gpus() -> int:
    """GPUs that torch can use. Imports torch only where the machine has any."""
    if not nvidia_gpu_present() or find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


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


def examine(ranks: int = 2) -> int:
    """Print everything; return 1 if ranks cannot talk to each other here, else 0."""
    for title, lines in (("machine", _machine()), ("devices", _devices()), ("packages", _packages())):
        _show(title, lines)
    _show("interfaces", _interfaces())
    failed = False
    if find_spec("torch") is not None:
        lines, failed = _all_reduce(ranks)
        _show(f"all-reduce between {ranks} ranks of this machine (CPU ranks: through shared memory)", iter(lines))
    _show("missing", _missing())
    return int(failed)


def measure_all_reduce(rank: int, device: str, sizes: tuple[int, ...], repeats: int) -> dict[str, Any]:
    """Called on every rank: median seconds of a sum over ranks, by number of float32 values."""
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
                float(total[0])  # on a GPU: wait until it is there
                took.append(time.perf_counter() - start)
            seconds[size] = sorted(took)[repeats // 2]
        return {"rank": rank, "backend": comm.backend, "device": str(comm.device), "seconds": seconds}


def _show(title: str, lines: Iterator[str]) -> None:
    print(title)
    for line in lines:
        print(f"  {line}", flush=True)


def _machine() -> Iterator[str]:
    yield f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}"
    yield f"{usable_cores()} usable cores of {os.cpu_count()}"
    with_memory = Path("/proc/meminfo")
    if with_memory.exists():
        kilobytes = int(with_memory.read_text().split()[1])
        free = usable_memory()
        usable = f", {free / 2**30:.1f} GiB of it usable now (replays need some)" if free is not None else ""
        yield f"{kilobytes / 2**20:.1f} GiB memory{usable}"
    if Path("/dev/shm").is_dir():
        usage = shutil.disk_usage("/dev/shm")
        yield f"/dev/shm: {usage.free / 2**20:.0f} MiB free (shared memory between CPU ranks)"


def _devices() -> Iterator[str]:
    if find_spec("torch") is None:
        yield "torch is not installed" + (", though this machine has an NVIDIA GPU" if nvidia_gpu_present() else "")
        return
    import torch
    import torch.distributed as dist

    cuda: Any = torch.version.cuda  # pyright: ignore[reportUnknownMemberType]
    yield f"torch {torch.__version__} ({f'CUDA {cuda}' if cuda else 'CPU build'})"
    cards: Any = torch.cuda
    for index in range(cards.device_count() if cards.is_available() else 0):
        properties = cards.get_device_properties(index)
        yield f"cuda:{index}: {properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    if warning := cpu_only_torch():
        yield f"WARNING: {warning}"
    elif not nvidia_gpu_present():
        yield "no NVIDIA GPU: ranks compute on the CPU"
    available = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available(), "mpi": dist.is_mpi_available()}
    yield "backends: " + ", ".join(name if have else f"{name} (not in this torch)" for name, have in available.items())


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


def _all_reduce(ranks: int) -> tuple[list[str], bool]:
    from lockstep.errors import ConfigError, RunError
    from lockstep.launch.local import spawn

    device = "cuda" if visible_gpus() >= ranks else "cpu"
    try:
        results = spawn(measure_all_reduce, ranks, (device, _SIZES, 50), timeout_s=120.0)
    except (ConfigError, RunError, OSError) as error:
        return [f"FAILED: {error}"], True
    first = results[0]
    return [
        f"{size:>9,} floats: {took * 1e6:8,.0f} us  ({first['backend']}, {first['device']})"
        for size, took in first["seconds"].items()
    ], False
