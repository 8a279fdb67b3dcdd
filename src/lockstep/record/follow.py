"""Read the files of a run while another process may still write them. Nothing here changes a file."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

_LAST_LINE_BYTES = 1 << 16


class JsonLinesFollower:
    """The objects of a JSON lines file, read as they are appended; incomplete and damaged lines are skipped.

    Attributes:
        lines: all objects read so far.
    """

    def __init__(self, path: Path) -> None:
        self.lines: list[dict[str, Any]] = []
        self._path = path
        self._offset = 0
        self._identity: tuple[int, int] | None = None

    def update(self) -> bool:
        """Read what was appended since the last call; returns whether there was anything new.

        A file that was replaced, or cut by the resumption of its run, is read again from its start.
        """
        changed = False
        try:
            with self._path.open("rb") as file:
                if self._is_another(file.fileno()):
                    changed = bool(self.lines)
                    self.lines, self._offset = [], 0
                file.seek(self._offset)
                content = file.read()
        except OSError:  # not there yet, or removed by a restart from the first step
            changed = bool(self.lines)
            self.lines, self._offset = [], 0
            return changed
        complete = content[: content.rfind(b"\n") + 1]
        self._offset += len(complete)
        found = list(_objects(complete))
        self.lines += found
        return changed or bool(found)

    def _is_another(self, descriptor: int) -> bool:
        """Whether the file is not the one that was read before, or shorter."""
        status = os.fstat(descriptor)
        before, self._identity = self._identity, (status.st_dev, status.st_ino)
        return (before is not None and before != self._identity) or status.st_size < self._offset


def last_line(path: Path) -> dict[str, Any]:
    """The last complete object of a JSON lines file, read from its end; empty without one."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _LAST_LINE_BYTES))
            content = file.read()
    except OSError:
        return {}
    for line in reversed(content.splitlines()):
        for found in _objects(line):
            return found
    return {}


def _objects(content: bytes) -> Iterator[dict[str, Any]]:
    for line in content.splitlines():
        with suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                yield cast(dict[str, Any], found)
