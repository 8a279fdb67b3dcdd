"""How much memory this process uses, and how much it may still use."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil

from lockstep.system.control_groups import control_groups

_UNLIMITED = 1 << 60  # version 1 writes a number near 2^63 for "no limit"


def resident_memory() -> int:
    """Bytes of this process that are in memory, shared pages included; 0 if unknown."""
    with contextlib.suppress(psutil.Error, OSError):
        return psutil.Process().memory_info().rss
    return 0


def usable_memory() -> int | None:
    """Bytes that this process and its siblings can still allocate without swapping or being killed; None if unknown.

    The file cache, which the system frees on demand, counts as free.
    """
    found = list(_of_control_groups())
    with contextlib.suppress(OSError):
        found.append(psutil.virtual_memory().available)
    return max(0, min(found)) if found else None


def _of_control_groups() -> Iterator[int]:
    """Bytes left in each control group of this process, from its own up to the root of the container."""
    for group, version in control_groups("memory"):
        if version == 2:
            yield from _left(group, "memory.max", "memory.current", "inactive_file")
        else:
            yield from _left(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _left(group: Path, limit: str, usage: str, cache: str) -> Iterator[int]:
    try:
        allowed, used = (group / limit).read_text().strip(), int((group / usage).read_text())
        if allowed == "max" or int(allowed) >= _UNLIMITED:
            return
        lines = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        cached = next((int(words[1]) for words in lines if words[0] == cache), 0)
        yield int(allowed) - used + cached
    except (OSError, ValueError, IndexError):
        return
