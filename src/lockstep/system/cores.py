"""Processors that this process may use: CPU affinity and container quota."""

import contextlib
import os
import platform
from collections.abc import Collection, Iterator
from pathlib import Path

from lockstep.system.control_groups import control_groups


def usable_cores(affinity: Collection[int] | None = None) -> int:
    """Processors allowed by affinity (default: of this process) and the control group's CPU quota, at least 1."""
    cores = len(os.sched_getaffinity(0) if affinity is None else affinity)
    quota = _quota()
    return max(1, min(cores, round(quota))) if quota else cores


WORTH_A_SECOND_THREAD = 100_000_000
"""Rows times parameters of a gradient step from which more threads are faster (about 2 ms of arithmetic).

Below it, synchronizing threads costs more than it saves: a small network with two threads on two busy cores was
measured 20 times slower.
"""


def threads_are_chosen() -> bool:
    """Whether the user or another launcher set OMP_NUM_THREADS; an empty value counts as not set."""
    ours = os.environ.get("LOCKSTEP_LAUNCHER") == "lockstep" and "LOCKSTEP_USER_THREADS" not in os.environ
    return bool(os.environ.get("OMP_NUM_THREADS")) and not ours


def processor() -> str:
    """The model of this machine's processor."""
    return _of_processor("model name", "Processor", "cpu model") or platform.machine()


def is_amd() -> bool:
    """Whether AMD made this machine's processor."""
    return _of_processor("vendor_id") == "AuthenticAMD"


def _of_processor(*names: str) -> str | None:
    """The first fact about the processor with one of these names."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith(names):
                return line.partition(":")[2].strip()
    return None


def _quota() -> float | None:
    """The smallest CPU quota of the control groups in processors; None if unlimited or unknown."""
    return min((quota for group, version in control_groups("cpu") for quota in _quotas(group, version)), default=None)


def _quotas(group: Path, version: int) -> Iterator[float]:
    """The quota of one control group, if it has one."""
    with contextlib.suppress(OSError, ValueError):
        if version == 2:
            limit, period = (group / "cpu.max").read_text().split()
        else:
            limit, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        if limit not in ("max", "-1"):
            yield int(limit) / int(period)
