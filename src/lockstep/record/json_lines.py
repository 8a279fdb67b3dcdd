"""JSON lines that survive a full disk, such as `metrics.jsonl`."""

import fcntl
import json
import math
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from lockstep.record.text import counted

_REMOVED = " (deleted)"
"""The end of the name that the kernel gives an open file without a name."""


class JsonLines:
    """One JSON object per line, unbuffered; on a full disk, lines are kept until the next `write` or `close`.

    The file is locked while it is open, which shows others that its writer lives (`record.run_status`).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._waiting = b""
        self._warned = False
        self._locked = False
        self._place: str | None = None
        """Where the kernel says that the open file lies; None if it does not."""

    def write(self, entry: Mapping[str, Any]) -> None:
        """Append one object; numbers that are not finite become `null`."""
        self._waiting += json.dumps(finite(entry), allow_nan=False).encode() + b"\n"
        self._append()

    def _append(self) -> None:
        size = None
        try:
            if self._file is None:
                self._file = self._path.open("ab", buffering=0)
                self._place = _place_of(self._file)
            if not self._locked:
                with suppress(OSError):  # without locks; or a reader asks for it just now: the next line tries again
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._locked = True
            size = os.fstat(self._file.fileno()).st_size
            written = 0
            while written < len(self._waiting):
                written += self._file.write(self._waiting[written:])
            self._waiting = b""
        except OSError as error:
            if self._file is not None and size is not None:
                with suppress(OSError):
                    self._file.truncate(size)
            if not self._warned:
                self._warned = True
                warn(f"{self._path} cannot be written ({error.strerror}); its lines wait in memory")

    def warn_if_moved(self) -> None:
        """Warn once if the file, or a directory above it, was moved or removed while it is open.

        Writes to it still succeed, and files that are opened later go to the old path.
        """
        if self._file is None or self._place is None:
            return
        place = _place_of(self._file)
        if place in (None, self._place):
            return
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._file.fileno()), os.stat(self._path)):
                return  # by another name: a link leads there
        self._place = None
        if place.endswith(_REMOVED):
            text = "was removed while it is written: what follows is lost; stop the run, and start it again"
        else:
            text = (
                f"was moved to {place} while it is written, and checkpoints still go to the old place; move it back, "
                "or stop the run and continue with --resume from where it is now"
            )
        warn(f"{self._path} {text}")

    def flush(self) -> None:
        """Write the lines that wait, if the disk has space again."""
        if self._waiting:
            self._append()

    def rewind(self, step: int) -> None:
        """Remove lines from the first one after `step` on, and an incomplete last line; readers skip damaged ones."""
        self.close()
        if not self._path.exists():
            return
        keep = 0
        with self._path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                with suppress(ValueError, KeyError, TypeError):
                    if json.loads(line)["step"] > step:
                        break
                keep += len(line)
        os.truncate(self._path, keep)

    def close(self) -> None:
        """Close the file; a later `write` opens it again. Warns about lines that the disk has no space for."""
        if self._waiting:
            self._append()
        if self._waiting:
            lines = counted(self._waiting.count(b"\n"), "line")
            warn(f"{self._path} lacks its last {lines}, which could not be written")
        if self._file is not None:
            self._file.close()
            self._file, self._locked = None, False


def _place_of(file: BinaryIO) -> str | None:
    """Where the kernel says that an open file lies."""
    with suppress(OSError):  # no /proc
        return os.readlink(f"/proc/self/fd/{file.fileno()}")
    return None


def warn(text: str) -> None:
    """One line on stderr, which may go to a file on the same full disk."""
    with suppress(OSError):
        print(f"lockstep: warning: {text}", file=sys.stderr, flush=True)


def finite(value: Any) -> Any:
    """The same tree of plain values with `None` for every float that is not finite."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in cast(list[Any], value)]
    if hasattr(value, "item"):
        value = value.item()  # a scalar of numpy or torch
    return None if isinstance(value, float) and not math.isfinite(value) else value
