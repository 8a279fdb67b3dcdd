"""How much memory this process may still use."""

from collections.abc import Iterator
from pathlib import Path

_SYSTEM, _GROUPS, _OWN_GROUPS = Path("/proc/meminfo"), Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

_UNLIMITED = 1 << 60  # version 1 says "no limit" by a number near 2^63


def usable_memory() -> int | None:
    """Bytes that this process and its siblings can still take without swapping or being killed; None if unknown.

    What the system could free at once (its file cache) counts as free.
    """
    found = [*_of_the_system(), *_of_control_groups()]
    return max(0, min(found)) if found else None


def _of_the_system() -> Iterator[int]:
    try:
        lines = dict(line.split(":", 1) for line in _SYSTEM.read_text().splitlines() if ":" in line)
        yield int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return


def _of_control_groups() -> Iterator[int]:
    """What each group has left that this process is in, from its own up to the one that covers the container."""
    try:
        entries = [line.split(":", 2) for line in _OWN_GROUPS.read_text().splitlines()]
    except OSError:
        return
    for entry in entries:
        if len(entry) != 3:
            continue
        _, controllers, path = entry
        if not controllers:
            names, root = ("memory.max", "memory.current", "inactive_file"), _GROUPS
        elif "memory" in controllers.split(","):
            root = _GROUPS / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # In a container the path is often the host's, and only the root is to be seen.
        folder = root / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group == root or root in group.parents:
                yield from _left(group, *names)


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
