"""How much memory a replay takes, and how much its process may still take: what is free, within its group's limit."""

from collections.abc import Iterator
from pathlib import Path

from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.frames import observation_bytes, ring_rows

_SYSTEM, _GROUPS, _OWN_GROUPS = Path("/proc/meminfo"), Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_ROW = 4 + 3  # bytes of a row beside observation and action: reward; age, what followed and validity
_UNLIMITED = 1 << 60  # version 1 says "no limit" by a number near 2^63


def usable_memory() -> int | None:
    """Bytes that this process and its siblings can still take without swapping or being killed; None if unknown.

    What the system could free at once (its file cache) counts as free.
    """
    found = [*_of_the_system(), *_of_control_groups()]
    return max(0, min(found)) if found else None


def replay_bytes(
    spec: EnvSpec, num_envs: int, capacity: int, *, n_step: int, prioritized: bool, mapped: bool = False
) -> int:
    """Memory that the replay of one shard takes (`lockstep.replay.Replay`, same arguments).

    `mapped` leaves out the observations: they lie in a file then.
    """
    rows = num_envs * ring_rows(spec, num_envs, capacity, n_step)
    action = 4 * spec.action.width if spec.action.kind == "continuous" else 8 * spec.action.width
    priorities = rows * 8 * 64 // 63 if prioritized else 0  # and the sums above them
    return rows * (action + _ROW) + priorities + (0 if mapped else observation_bytes(spec, rows))


def in_words(num_bytes: float) -> str:
    """As people say it: `1.20 GB`, `36.5 MB`."""
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def check_memory(capacity: int, wanted: int, *, copy: int) -> None:
    """Refuse a replay that this machine's memory cannot hold.

    Every rank of a host asks before any of them makes its part.

    Args:
        capacity: the setting.
        wanted: bytes of all parts that belong on this host, by `replay_bytes`.
        copy: bytes that checkpoints copy before they write: all of these parts, mapped or not, or 0 without them.

    Raises:
        ConfigError: it does not fit.
    """
    free, needed = usable_memory(), wanted + copy
    if free is None or needed <= free:
        return
    ways = ["algorithm.checkpoint_replay=false"] if copy and wanted <= free else []
    ways.append(f"algorithm.capacity={int(capacity * free / needed)} or less")
    if wanted >= copy:  # it is not in files yet
        ways.append("algorithm.replay_path for files instead" + (", with checkpoint_replay=false" if copy else ""))
    raise ConfigError(
        f"algorithm.capacity={capacity} needs {in_words(needed)} of memory on this host"
        f"{' with the copy for checkpoints' if copy else ''}, and {in_words(free)} are free; use {', '.join(ways)}"
    )


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
