"""A log file per rank, for launchers that do not redirect each rank's output to a file."""

import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, cast

from lockstep.system.files import not_writable


class RankLog:
    """Copy what this process prints to its log until closed; `printed` are lines from before there was a log.

    Raises `ConfigError` where the log cannot be opened, as that of a run on a read-only disk.
    """

    def __init__(self, run_dir: Path, rank: int, printed: Iterable[str] = ()) -> None:
        path = run_dir / "logs" / f"rank_{rank}.log"
        try:
            path.parent.mkdir(exist_ok=True)
            self._file = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise not_writable(path, error) from None
        with suppress(OSError):  # a full disk
            self._file.writelines(f"{line}\n" for line in printed)
        self._before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (cast(TextIO, Tee(stream, self._file)) for stream in self._before)

    def close(self) -> None:
        """Give the streams back."""
        sys.stdout, sys.stderr = self._before
        with suppress(OSError):  # a full disk
            self._file.close()


class Tee:
    """A stream that writes to `terminal` and `log`; all other attributes are those of `terminal`."""

    def __init__(self, terminal: TextIO, log: TextIO) -> None:
        self.terminal, self.log = terminal, log

    def write(self, text: str) -> int:
        """Write to both; the log may be closed already, or on a full disk."""
        if not self.log.closed:
            with suppress(OSError):
                self.log.write(text)
        return self.terminal.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write all to both."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.terminal, name)
