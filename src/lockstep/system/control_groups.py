"""The control groups of this process, which limit its memory and its processors."""

from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def control_groups(controller: str) -> Iterator[tuple[Path, int]]:
    """The folders of the groups that limit `memory` or `cpu`, from the process's own up to the container's root.

    Yields:
        A folder, and the version of its interface, 1 or 2.
    """
    try:
        entries = [line.split(":", 2) for line in _OWN_GROUPS.read_text().splitlines()]
    except OSError:
        return
    for entry in entries:
        if len(entry) != 3:
            continue
        _, controllers, path = entry
        if controllers and controller not in controllers.split(","):
            continue
        root, version = (_GROUPS / controller, 1) if controllers else (_GROUPS, 2)
        # In a container the path is often the host's, and only the root is visible.
        folder = root / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group == root or root in group.parents:
                yield group, version
