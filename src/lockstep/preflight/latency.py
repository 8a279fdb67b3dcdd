"""Measure the network: seconds of a sum over all ranks, bandwidth of a host, differences of clocks."""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from lockstep.distributed.comm import Comm
from lockstep.preflight.cost_model import exchange

_SMALL, _LARGE, _MEDIUM = 8, 2**20, 2**14  # float32 numbers of a sum
_SMALL_TOTAL_S = 0.3  # of repeated small sums, at least 3 and at most 50
_SLOW_MEDIUM_S = 0.1  # on a slower network a large sum is skipped
_CLOCKS = 3  # readings; the smallest difference counts, since a busy rank reads late


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One sum over all ranks."""

    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The measurements between all ranks."""

    small: Timing
    large: Timing
    bytes_per_s: float | None
    """That a host sends during the large sum; None on one host."""

    def __str__(self) -> str:
        return (
            f"a small sum over all takes {self.small.seconds * 1e3:.3g} ms, "
            f"one of {self.large.bytes / 2**20:.2g} MiB {self.large.seconds * 1e3:.3g} ms"
        )

    def to_dict(self) -> dict[str, Any]:
        """The entries of `preflight.json`."""
        return {"small": asdict(self.small), "large": asdict(self.large) | {"bytes_per_s": self.bytes_per_s}}


Summing = Callable[[int], Callable[[], object]]
"""From a number of float32 values, a function that sums so many over all ranks and waits for the sum; collective."""


def measure_network(comm: Comm, summing: Summing, num_hosts: int, tag: str) -> Network:
    """Time a small sum over all ranks, and one as large as the network does in about a second; *collective*."""
    first = _median_seconds(summing(_SMALL), 3)
    repeats = int(min(max(_SMALL_TOTAL_S / _slowest(comm, first, tag), 3), 50))
    small = Timing(bytes=4 * _SMALL, seconds=_median_seconds(summing(_SMALL), repeats))
    size, seconds = _MEDIUM, _median_seconds(summing(_MEDIUM), 2)
    if _slowest(comm, seconds, tag) < _SLOW_MEDIUM_S:
        size = max(_MEDIUM, _LARGE // len(comm.world.shards_of(0)))  # a sum has a row for each shard
        seconds = _median_seconds(summing(size), 2)
    large, (_, sends) = Timing(bytes=4 * size, seconds=seconds), exchange(num_hosts, 4 * size)
    return Network(
        small=small,
        large=large,
        bytes_per_s=sends * large.bytes / max(large.seconds - small.seconds, 1e-9) if sends else None,
    )


def clock_skews(comm: Comm, tag: str) -> list[float]:
    """Each rank's clock minus rank 0's, read right after a barrier; *collective*."""
    comm.barrier(tag)
    best = [float("inf")] * comm.world.size
    for _ in range(_CLOCKS):
        clocks: list[float] = comm.gather_object(time.time(), tag)
        best = [min(old, clock - clocks[0], key=abs) for old, clock in zip(best, clocks, strict=True)]
    return best


def _slowest(comm: Comm, seconds: float, tag: str) -> float:
    """The longest time of all ranks, so that all make the same choice."""
    every: list[float] = comm.gather_object(seconds, tag)
    return max(*every, 1e-6)


def _median_seconds(add: Callable[[], object], repeats: int) -> float:
    """Median seconds of a sum; the first, which allocates buffers, is not counted."""
    took = list[float]()
    for _ in range(repeats + 1):
        start = time.perf_counter()
        add()
        took.append(time.perf_counter() - start)
    return statistics.median(took[1:])
