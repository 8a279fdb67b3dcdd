"""Write metrics to `metrics.jsonl`, which is authoritative, and to TensorBoard event files."""

import json
import math
import os
import sys
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, cast


class JsonLines:
    """One JSON object per line, unbuffered; on a full disk, lines are kept until the next `write` or `close`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._waiting = b""
        self._warned = False

    def write(self, entry: Mapping[str, Any]) -> None:
        """Append one object; numbers that are not finite become `null`."""
        self._waiting += json.dumps(finite(entry), allow_nan=False).encode() + b"\n"
        self._append()

    def _append(self) -> None:
        size = None
        try:
            self._file = self._file or self._path.open("ab", buffering=0)
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
                _warn(f"{self._path} cannot be written ({error.strerror}); its lines wait in memory")

    def rewind(self, step: int) -> None:
        """Remove lines after `step`, and an incomplete last line."""
        self.close()
        if not self._path.exists():
            return
        keep = 0
        with self._path.open("rb") as file:
            for line in file:
                try:
                    written_at = json.loads(line)["step"] if line.endswith(b"\n") else math.inf
                except (ValueError, KeyError, TypeError):
                    written_at = math.inf
                if written_at > step:
                    break
                keep += len(line)
        os.truncate(self._path, keep)

    def close(self) -> None:
        """Close the file; a later `write` opens it again."""
        if self._waiting:
            self._append()
        if self._file is not None:
            self._file.close()
            self._file = None


class TensorBoard:
    """Scalars as TensorBoard event files, through the `tensorboard` package alone.

    Scalars are buffered for `flush_every_s`, and the package (0.2 s) is imported at the first flush: in a short run at
    its end, not between two rollouts. Without the package, one line is printed on stderr.
    """

    def __init__(self, directory: Path, flush_every_s: float = 5.0) -> None:
        self._directory, self._flush_every_s = directory, flush_every_s
        self._waiting: list[tuple[float, int, dict[str, float]]] = []
        self._flushed_s = time.monotonic()
        self._writer: Any = None
        self._purge_after: int | None = None

    def rewind(self, step: int) -> None:
        """Have TensorBoard ignore entries of earlier event files after `step`."""
        self._purge_after = step

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add scalars at a step; what is not finite is left out."""
        scalars = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        if scalars:
            self._waiting.append((time.time(), step, scalars))
        if time.monotonic() - self._flushed_s >= self._flush_every_s:
            self.flush()

    def flush(self) -> None:
        """Write buffered scalars to the disk."""
        self._flushed_s = time.monotonic()
        waiting, self._waiting = self._waiting, []
        if not waiting or not self._open():
            return
        event = import_module("tensorboard.compat.proto.event_pb2").Event
        summary = import_module("tensorboard.compat.proto.summary_pb2").Summary
        try:
            for wall_time, step, scalars in waiting:
                values = [summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
                self._writer.add_event(event(wall_time=wall_time, step=step, summary=summary(value=values)))
            self._writer.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Flush and close; a later `write` starts another event file."""
        self.flush()
        if self._writer is not None:
            with suppress(OSError):
                self._writer.close()
            self._writer = None

    def _give_up(self, error: OSError) -> None:
        """On a full disk: `metrics.jsonl` has the same numbers."""
        self._flush_every_s, self._writer = math.inf, None
        _warn(f"no more TensorBoard files ({error.strerror})")

    def _open(self) -> bool:
        if self._writer is None:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # the package's own dependencies warn about each other
                    module = import_module("tensorboard.summary.writer.event_file_writer")
            except ImportError:
                self._flush_every_s = math.inf
                print(
                    "lockstep: no TensorBoard files; the package is missing: pip install tensorboard", file=sys.stderr
                )
                return False
            try:
                self._writer = module.EventFileWriter(str(self._directory))
            except OSError as error:
                self._give_up(error)
                return False
            if self._purge_after is not None:
                pb = import_module("tensorboard.compat.proto.event_pb2")
                start = pb.SessionLog(status=pb.SessionLog.START)
                self._writer.add_event(pb.Event(wall_time=time.time(), step=self._purge_after + 1, session_log=start))
                self._purge_after = None
        return True


def _warn(text: str) -> None:
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
