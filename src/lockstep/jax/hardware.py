"""Devices, threads and arithmetic modes of this process; most must be set before JAX is first used."""

import os
import sys
from typing import Any, cast

import jax
from jax._src import xla_bridge
from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingTypeStubs]

from lockstep.distributed.watch import MARGIN_S
from lockstep.errors import ConfigError
from lockstep.run import AnyRun
from lockstep.system.cores import WORTH_A_SECOND_THREAD, threads_are_chosen
from lockstep.system.launchers import hint_on_gpus
from lockstep.system.nvidia import jax_finds_gpu
from lockstep.world import World

_ONE_THREAD = {"xla_cpu_multi_thread_eigen": "false"}
_BARRIERS = {"xla_disable_hlo_passes": "cse_barrier_expander"}
"""XLA's CPU compiler removes `jax.lax.optimization_barrier` before fusion unless this pass is disabled. A product could
then be fused into a sum, rounded once instead of twice, in one program and not in another."""
_LARGEST_POOL = 8
_TIMEOUTS = ("xla_cpu_collective_timeout_seconds", "xla_cpu_collective_call_terminate_timeout_seconds")


def pin(run: AnyRun, world: World) -> None:
    """Set what changes bits, before JAX is first used: of a run that is not pinned only `tf32`, if it is set."""
    on_gpu = run.device != "cpu" and gpu_available()
    if on_gpu and (run.tf32 is not None or world.pinned):
        jax.config.update("jax_default_matmul_precision", "tensorfloat32" if run.tf32 else "highest")
    if not world.pinned:
        return
    # XLA splits convolutions and sums by the threads of its pool, which has at least one per device of the process. The
    # pool size is therefore fixed, so that bits do not depend on the number of devices.
    pool = min(world.num_shards, _LARGEST_POOL)
    if run.devices_per_process > pool and kind_of(run.device) == "cpu":
        raise ConfigError(
            f"devices_per_process={run.devices_per_process}: with num_shards pinned, a process drives at most {pool} "
            f"CPU devices; use more processes (--ranks)"
        )
    if is_in_use() and os.environ.get("NPROC") != str(pool):
        note = (
            "JAX was in use before this pinned run, as by a file that makes arrays where it is imported: its threads "
            "are fixed already, and bits may differ from those of other starts; make constants with numpy, and JAX's "
            "arrays within functions"
        )
        print(f"lockstep: note: {note}", file=sys.stderr)
    one_thread(pool)
    if on_gpu:
        set_flags({"xla_gpu_deterministic_ops": "true"})


def share_cores(world: World, work: int) -> None:
    """Compute on one thread unless a gradient step is `work` enough for more; before JAX is first used.

    XLA supports only one thread or all cores, so a host of several ranks always takes one each. OMP_NUM_THREADS set by
    the user has precedence.
    """
    if world.pinned or threads_are_chosen():
        return
    if world.local_size > 1 or work < WORTH_A_SECOND_THREAD:
        one_thread()


def one_thread(pool: int = 1) -> None:
    """Make XLA and numpy compute on one thread, XLA with a pool of `pool` threads; before JAX is first used."""
    set_flags(_ONE_THREAD)
    os.environ["NPROC"] = str(pool)
    threadpool_limits(1)


def set_flags(flags: dict[str, str]) -> None:
    """Add to XLA_FLAGS, which XLA reads on first use; flags set by the user have precedence."""
    words = os.environ.get("XLA_FLAGS", "").split()
    names = {word.partition("=")[0] for word in words}
    words += [f"--{name}={value}" for name, value in flags.items() if f"--{name}" not in names]
    os.environ["XLA_FLAGS"] = " ".join(words)


def gpu_available() -> bool:
    """Whether JAX would find a GPU, determined without initializing JAX."""
    return _setting("jax_platforms") != "cpu" and jax_finds_gpu()


def kind_of(device: str) -> str:
    """`gpu` or `cpu`, for the setting `device`; before JAX is first used."""
    if device == "cpu":
        return "cpu"
    if not gpu_available() and device == "auto":
        chosen = _setting("jax_platforms") or "cpu"
        if "cpu" not in chosen.split(","):  # JAX itself would refuse it, where it starts
            raise ConfigError(
                f"JAX_PLATFORMS={chosen}, and Lockstep, which computes on NVIDIA's GPUs and on CPUs, finds no GPU for "
                "JAX; unset it, or use device=cpu"
            )
        return "cpu"
    if not gpu_available():
        raise ConfigError("device=cuda, but JAX sees no GPU; use device=cpu, or `lockstep doctor` to see why")
    return "gpu"


def backend_of(kind: str, backend: str) -> str:
    """The collectives for a kind of device: nccl between GPUs, gloo between CPUs, unless `backend` names one."""
    if backend == "nccl" and kind == "cpu":
        raise ConfigError("backend=nccl needs GPUs, but this rank computes on the CPU; use backend=gloo")
    if backend == "gloo" and kind == "gpu":
        raise ConfigError("backend=gloo is for CPUs in JAX; use backend=nccl, or device=cpu")
    return backend if backend != "auto" else "nccl" if kind == "gpu" else "gloo"


def prepare(kind: str, devices: int, timeout_s: float) -> None:
    """Set the platform, the number of CPU devices and the timeout of collectives; no effect once JAX is in use."""
    if kind == "cpu":
        limit = str(max(1, int(timeout_s + MARGIN_S)))
        set_flags(_BARRIERS | dict.fromkeys(_TIMEOUTS, limit))
        # Results are waited for anyway, and computing in the calling thread saves handing over.
        _set("jax_cpu_enable_async_dispatch", False)
        _set("jax_platforms", "cpu")
        if _setting("jax_num_cpu_devices") < devices:
            _set("jax_num_cpu_devices", devices)


def compute_on_cpu() -> None:
    """Leave the GPUs to others; in a process that has not used JAX yet."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    _set("jax_platforms", "cpu")


def is_in_use() -> bool:
    """Whether JAX has started its devices; False where this version does not tell."""
    return bool(getattr(xla_bridge, "backends_are_initialized", lambda: False)())


def _setting(name: str) -> Any:
    return getattr(jax.config, name, None)


def _set(name: str, value: object) -> None:
    if _setting(name) != value:
        try:
            jax.config.update(name, value)
        except RuntimeError:  # JAX is in use; `local_devices` reports missing devices
            return


def local_devices(world: World, kind: str, count: int) -> list[Any]:
    """The devices of this process. Raises `ConfigError` on every rank of a host with too few."""
    try:
        found = cast("list[Any]", jax.local_devices(backend=kind))
    except RuntimeError as error:  # also where `jax.distributed` was given a GPU that does not exist
        if kind == "cpu":
            raise
        wanted = ", ".join(map(str, local_gpu_ids(world, kind, count) or ()))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        among = "" if visible is None else f" of CUDA_VISIBLE_DEVICES={visible}"
        raise ConfigError(
            f"local rank {world.local_rank} was to compute on GPU {wanted}{among}, and JAX cannot use it "
            f"({str(error).splitlines()[0]}); use fewer processes, or device=cpu{hint_on_gpus(world.launcher)}"
        ) from error
    assigned = kind == "gpu" and jax.process_count() > 1  # `jax.distributed` was given this process' GPUs
    needed = count if kind == "cpu" or assigned else count * world.local_size
    if len(found) < needed:
        what = f"{len(found)} {'GPU' if kind == 'gpu' else 'CPU device'}(s)"
        raise ConfigError(
            f"devices_per_process={count} with {world.local_size} process(es) on this machine, where JAX sees {what}; "
            + ("use fewer" if kind == "gpu" else "set jax_num_cpu_devices before JAX is first used, or use fewer")
        )
    first = world.local_rank * count if kind == "gpu" and not assigned else 0
    return list(found[first : first + count])


def local_gpu_ids(world: World, kind: str, count: int) -> list[int] | None:
    """Indices of this process' GPUs on its host, for `jax.distributed`; None on CPUs."""
    first = world.local_rank * count
    return list(range(first, first + count)) if kind == "gpu" else None


def all_devices(own: list[Any], count: int) -> list[Any]:
    """The devices of all processes, `count` of each, in rank order."""
    by_rank: dict[int, list[Any]] = {}
    for device in cast("list[Any]", jax.devices(own[0].platform)):
        by_rank.setdefault(device.process_index, []).append(device)
    return [device for rank in sorted(by_rank) for device in sorted(by_rank[rank], key=lambda d: d.id)[:count]]


def describe(devices: list[Any]) -> str:
    """`cpu`, `4 x cpu`, `cuda:0 (name of the GPU)`, or `2 x name of the GPU`."""
    first = devices[0]
    if first.platform != "cpu" and len(devices) == 1:
        return f"cuda:{first.local_hardware_id} ({first.device_kind})"
    name = "cpu" if first.platform == "cpu" else first.device_kind
    return name if len(devices) == 1 else f"{len(devices)} x {name}"


def peak_memory(device: Any) -> int | None:
    """The most memory of a GPU that arrays of this process have used so far, in bytes; None on a CPU."""
    statistics: dict[str, int] | None = None if device.platform == "cpu" else device.memory_stats()
    return None if statistics is None else statistics.get("peak_bytes_in_use")


def free_memory(device: Any) -> int | None:
    """Bytes of a GPU's memory that JAX may still take; None on a CPU, 0 where JAX's allocator does not tell."""
    if device.platform == "cpu":
        return None
    statistics: dict[str, int] = device.memory_stats() or {}
    return max(statistics.get("bytes_limit", 0) - statistics.get("bytes_in_use", 0), 0)
