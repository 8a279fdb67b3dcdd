"""The preflight of JAX's ranks: device names and a timed sum over shards."""

from collections.abc import Callable

import numpy as np

from lockstep.jax.comm import Comm
from lockstep.preflight import compare as shared
from lockstep.preflight.compare import NO_FLAGS, Flags, Framework, Preflight
from lockstep.run import AnyRun


def preflight(comm: Comm, run: AnyRun, *, flags: Flags = NO_FLAGS, measure: bool | None = None) -> Preflight:
    """Compare all ranks and measure the network between hosts (`lockstep.preflight.compare`); *collective*."""

    def summing(size: int) -> Callable[[], object]:
        rows = np.ones((len(comm.world.shards), size // 2))  # float64: as many bytes
        return lambda: comm.sum_statistics(rows, shared.TAG)

    framework = Framework(
        device=comm.devices[0].device_kind if comm.devices[0].platform != "cpu" else "cpu",
        summing=summing,
    )
    return shared.preflight(comm, run, framework, flags=flags, measure=measure)
