"""Read the files of a run while another process may still write them. Nothing here changes a file."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

_END_BYTES = 1 << 16
"""First read of the end of a file; doubled until a whole line is in it."""


class JsonLinesFollower:
    """The objects of a JSON lines file, read as they are appended; incomplete and damaged lines are skipped.

    Args:
        path: the file, which need not exist yet.
        keep: the number of objects to keep, the newest; None: all.

    Attributes:
        lines: the objects read so far, the newest last.
        added: those that the last `update` read.
        began_anew: whether the last `update` dropped all before these.
    """

    def __init__(self, path: Path, keep: int | None = None) -> None:
        self.lines: list[dict[str, Any]] = []
        self.added: list[dict[str, Any]] = []
        self.began_anew = False
        self._keep = keep
        self._path = path
        self._offset = 0
        self._last_line = b""
        self._identity: tuple[int, int] | None = None

    def update(self) -> bool:
        """Read what was appended since the last call; returns whether there was anything new.

        A file that was replaced, or cut by the resumption of its run, is read again from its start.
        """
        self.added, self.began_anew = [], False
        try:
            with self._path.open("rb") as file:
                if self._is_another(file):
                    self._forget()
                file.seek(self._offset)
                content = file.read()
        except OSError:  # not there yet, or removed by a restart from the first step
            self._forget()
            return self.began_anew
        complete = content[: content.rfind(b"\n") + 1]
        if complete:
            self._offset += len(complete)
            self._last_line = complete[complete.rfind(b"\n", 0, -1) + 1 :]
        self.added = list(_objects(complete))
        self.lines += self.added
        if self._keep is not None:
            del self.lines[: -self._keep]
        return self.began_anew or bool(self.added)

    def _forget(self) -> None:
        self.began_anew = bool(self.lines)
        self.lines, self._offset, self._last_line = [], 0, b""

    def _is_another(self, file: BinaryIO) -> bool:
        """Whether the file is not the one that was read before, or was cut, though it may have grown again since."""
        status = os.fstat(file.fileno())
        before, self._identity = self._identity, (status.st_dev, status.st_ino)
        if before is not None and before != self._identity:
            return True
        file.seek(self._offset - len(self._last_line))
        return file.read(len(self._last_line)) != self._last_line


def read_json(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file; empty if it cannot be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):  # ValueError: its writer was killed half-way
        return {}
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def read_end(path: Path, num_bytes: int) -> bytes:
    """The end of a file; empty if it cannot be read."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - num_bytes))
        return file.read()
    return b""


def last_line(path: Path) -> dict[str, Any]:
    """The last complete object of a JSON lines file, read from its end; empty without one."""
    num_bytes = _END_BYTES
    while True:
        content = read_end(path, num_bytes)
        whole = len(content) < num_bytes
        lines = content.splitlines()
        for line in reversed(lines if whole else lines[1:]):  # the first may be the end of a longer one
            for found in _objects(line):
                return found
        if whole:
            return {}
        num_bytes *= 2


def _objects(content: bytes) -> Iterator[dict[str, Any]]:
    for line in content.splitlines():
        with suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                yield cast(dict[str, Any], found)
