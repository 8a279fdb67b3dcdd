"""Processors that this process may use: CPU affinity and container quota."""

import contextlib
import os
import platform
from collections.abc import Collection
from pathlib import Path


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
    """CPU quota of the control group in processors; None if unlimited or unknown."""
    with contextlib.suppress(OSError, ValueError):
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    with contextlib.suppress(OSError, ValueError):
        folder = Path("/sys/fs/cgroup/cpu")
        limit, period = int((folder / "cpu.cfs_quota_us").read_text()), int((folder / "cpu.cfs_period_us").read_text())
        return limit / period if limit > 0 else None
    return None
