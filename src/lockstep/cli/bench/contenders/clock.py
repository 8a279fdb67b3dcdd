"""What the scripts of `lockstep bench` share; needs the standard library only."""

import argparse
import json
import resource
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version


def arguments(*names: str) -> argparse.Namespace:
    """The arguments of a script: `names`, then `--warm-up` and `--measured`."""
    parser = argparse.ArgumentParser()
    for name in names:
        parser.add_argument(name)
    parser.add_argument("--warm-up", type=int, default=0)
    parser.add_argument("--measured", type=int, default=1)
    return parser.parse_args()


class Clock:
    """Steps per second after a warm-up.

    Args:
        warm_up: steps before the clock starts.
    """

    def __init__(self, warm_up: int) -> None:
        self._warm_up = warm_up
        self._marks: list[tuple[int, float]] = []

    def mark(self, steps: int) -> None:
        """Note the time at which `steps` are done, all since the start of the process."""
        self._marks.append((steps, time.perf_counter()))

    def per_second(self) -> float:
        """Steps per second from the first mark at or after the warm-up to the last mark."""
        first = next(mark for mark in self._marks if mark[0] >= self._warm_up)
        last = self._marks[-1]
        return (last[0] - first[0]) / (last[1] - first[1])


def report(value: float, packages: Sequence[str], *, of_children: bool = False, peak_mb: float | None = None) -> None:
    """Print the result: the value, the largest memory of a process in MB, versions.

    Args:
        value: what was measured.
        packages: those whose versions are printed.
        of_children: the largest memory of this process's children, instead of its own.
        peak_mb: the largest memory, where it is known.
    """
    versions: dict[str, str] = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    if peak_mb is None:
        whose = resource.RUSAGE_CHILDREN if of_children else resource.RUSAGE_SELF
        peak_mb = resource.getrusage(whose).ru_maxrss / 1024
    print(json.dumps({"value": value, "peak_mb": round(peak_mb, 1), "versions": versions}))
