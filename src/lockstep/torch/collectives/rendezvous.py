"""The ranks of a world meet at a store of torch's, and open the process group."""

import datetime
import time
from typing import Any, cast

import torch.distributed as dist

from lockstep.distributed.network.meeting import store_of
from lockstep.distributed.watch import MARGIN_S
from lockstep.errors import PeerError
from lockstep.system.bounded import bounded
from lockstep.torch.collectives.stores import TorchKind
from lockstep.world import World

_FULL_MESH_S = 10.0  # what opening the group may take when the last rank came at the last moment


def connect(world: World, backend: str, timeout_s: float, startup_timeout_s: float) -> None:
    """Meet the other ranks and open the process group among them; *collective*.

    Args:
        world: who is to come.
        backend: `nccl` or `gloo`.
        timeout_s: bound on every collective of the group.
        startup_timeout_s: bound on all of this.

    Raises:
        ConfigError: ranks contradict each other, or cannot find each other as they were told to.
        PeerError: some did not come, or ended.
    """
    until = time.monotonic() + startup_timeout_s
    store = store_of(TorchKind(), world, startup_timeout_s)

    def opened() -> bool:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo",
            store=cast(Any, store),
            rank=world.rank,
            world_size=world.size,
            timeout=datetime.timedelta(seconds=timeout_s + MARGIN_S),
        )
        return True

    try:
        # Connecting everyone with everyone overruns the timeout it is given several times over.
        bounded(opened, max(until - time.monotonic(), _FULL_MESH_S))
    except (RuntimeError, ValueError, TimeoutError) as error:
        raise PeerError(
            f"rank {world.rank} could not connect to all {world.size} ranks within "
            f"startup_timeout_s={startup_timeout_s:g}: {str(error).splitlines()[0]}"
        ) from error
