"""The rendezvous of torch's ranks, which opens the process group."""

import datetime
import time
from typing import Any, cast

import torch.distributed as dist

from lockstep.distributed.network.rendezvous import rendezvous
from lockstep.distributed.watch import MARGIN_S
from lockstep.errors import ConfigError, PeerError
from lockstep.system.bounded import bounded
from lockstep.torch.collectives.stores import TorchStoreBackend
from lockstep.world import World

_FULL_MESH_S = 10.0  # for opening the group when the last rank came at the last moment


def connect(world: World, backend: str, timeout_s: float, startup_timeout_s: float) -> None:
    """Wait for the other ranks and open the process group; *collective*.

    Args:
        world: the expected ranks.
        backend: `nccl` or `gloo`.
        timeout_s: bound on every collective of the group.
        startup_timeout_s: bound on this call.

    Raises:
        ConfigError: ranks contradict each other, or cannot reach each other at the given address, or this process has a
            process group already.
        PeerError: some did not come, or ended.
    """
    if dist.is_initialized():
        raise ConfigError(
            "this process has a process group of torch.distributed already; leave init_process_group out, which Comm "
            "does, or close the other Comm first"
        )
    deadline = time.monotonic() + startup_timeout_s
    store = rendezvous(TorchStoreBackend(), world, startup_timeout_s)

    def open_group() -> bool:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo",
            store=cast(Any, store),
            rank=world.rank,
            world_size=world.size,
            timeout=datetime.timedelta(seconds=timeout_s + MARGIN_S),
        )
        return True

    try:
        # Connecting all ranks with each other may take several times the timeout that it is given.
        bounded(open_group, max(deadline - time.monotonic(), _FULL_MESH_S))
    except (RuntimeError, ValueError, TimeoutError) as error:
        raise PeerError(
            f"rank {world.rank} could not connect to all {world.size} ranks within "
            f"startup_timeout_s={startup_timeout_s:g}: {str(error).splitlines()[0]}"
        ) from error
