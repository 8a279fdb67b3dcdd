"""The preflight measurements of PyTorch."""

from collections.abc import Callable

import torch

from lockstep.preflight import compare as shared
from lockstep.preflight.compare import NO_FLAGS, Flags, Framework, Preflight
from lockstep.run import AnyRun
from lockstep.torch.comm import Comm
from lockstep.torch.hardware import kind_of


def preflight(comm: Comm, run: AnyRun, *, flags: Flags = NO_FLAGS, measure: bool | None = None) -> Preflight:
    """Compare all ranks, and measure the network between hosts (`lockstep.preflight.compare`); *collective*."""

    def summing(size: int) -> Callable[[], object]:
        value = torch.ones(size, device=comm.device)
        return lambda: float(comm.sum(value, shared.TAG)[0])  # wait for the GPU

    framework = Framework(device=kind_of(comm.device), summing=summing)
    return shared.preflight(comm, run, framework, flags=flags, measure=measure)
