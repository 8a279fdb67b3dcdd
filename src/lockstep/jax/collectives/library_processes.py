"""Let other libraries use the processes of JAX that are connected, instead of connecting them themselves."""

import contextlib
import importlib
from collections.abc import Generator
from typing import Any

import jax

from lockstep.jax import hardware
from lockstep.jax.collectives.processes import Processes
from lockstep.world import World


@contextlib.contextmanager
def lend_jax_processes(
    world: World, processes: Processes, device: str, timeout_s: float, startup_timeout_s: float
) -> Generator[None]:
    """Start `jax.distributed`; within the context, `jax.distributed.initialize` keeps it.

    Args:
        world: all processes, each with one device.
        processes: connected.
        device: `auto`, `cpu` or `cuda`.
        timeout_s: bound on every collective.
        startup_timeout_s: bound on waiting for the other processes.
    """
    kind = hardware.kind_of(device)
    hardware.prepare(kind, 1, timeout_s)
    if world.size == 1:
        yield
        return
    processes.start_jax(hardware.local_gpu_ids(world, kind, 1), startup_timeout_s)

    importlib.import_module("jax.experimental.multihost_utils")  # skrl uses it without importing it

    def keep_processes(*_args: Any, **_options: Any) -> None: ...

    initialize = jax.distributed.initialize
    jax.distributed.initialize = keep_processes
    try:
        yield
    finally:
        jax.distributed.initialize = initialize
