"""TensorBoard's event files, written by the `tensorboard` package alone: numbers, texts and videos."""

import functools
import struct
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from lockstep.record.json_lines import warn

_PROTO = "tensorboard.compat.proto."


class EventFile:
    """An event file, which `open` begins. Where that fails, or on a full disk, one line says so; no more is written.

    Args:
        directory: of the file.

    Attributes:
        forget_after: TensorBoard ignores what earlier files have after this step; None: it shows all.
    """

    def __init__(self, directory: Path) -> None:
        self.forget_after: int | None = None
        self._directory = directory
        self._writer: Any = None
        self._can_open = True

    @property
    def is_open(self) -> bool:
        """Whether entries are written."""
        return self._writer is not None

    def open(self) -> bool:
        """Import the package (0.2 s) and begin a file; returns whether that was possible."""
        if not self._can_open:
            return False
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the package's own dependencies warn about each other
                module = import_module("tensorboard.summary.writer.event_file_writer")
        except ImportError:
            self._can_open = False
            print("lockstep: no TensorBoard files; the package is missing: pip install tensorboard", file=sys.stderr)
            return False
        _hide_errors_of_writer_threads()
        try:
            self._writer = module.EventFileWriter(str(self._directory))
            if self.forget_after is not None:
                self._writer.add_event(_start_after(self.forget_after))
                self.forget_after = None
        except OSError as error:
            self._give_up(error)
        return self.is_open

    def add(self, step: int, values: Mapping[str, float | str | bytes], wall_time: float | None = None) -> None:
        """Add values by name: numbers, texts in Markdown, and GIFs, which TensorBoard plays."""
        writer = self._writer  # the file may be closed by another thread meanwhile
        try:
            if writer is not None:
                writer.add_event(_event(step, time.time() if wall_time is None else wall_time, values))
        except OSError as error:
            self._give_up(error)

    def flush(self) -> None:
        """Write what was added to the disk."""
        try:
            if self._writer is not None:
                self._writer.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """End the file."""
        with suppress(OSError):
            if self._writer is not None:
                self._writer.close()
        self._writer = None

    def _give_up(self, error: OSError) -> None:
        """On a full disk: `metrics.jsonl` has the same numbers."""
        self._writer, self._can_open = None, False
        warn(f"no more TensorBoard files ({error.strerror})")


@functools.cache
def _hide_errors_of_writer_threads() -> None:
    """Keep Python from printing the errors of the package's threads: the next call raises them, and is told of them."""
    print_error = threading.excepthook

    def print_others(error: threading.ExceptHookArgs) -> None:
        if type(error.thread).__name__ != "_AsyncWriterThread" or not isinstance(error.exc_value, OSError):
            print_error(error)

    threading.excepthook = print_others


def _event(step: int, wall_time: float, values: Mapping[str, float | str | bytes]) -> Any:
    made = [_value(name, value) for name, value in values.items()]
    summary = import_module(f"{_PROTO}summary_pb2").Summary(value=made)
    return import_module(f"{_PROTO}event_pb2").Event(wall_time=wall_time, step=step, summary=summary)


def _start_after(step: int) -> Any:
    pb = import_module(f"{_PROTO}event_pb2")
    return pb.Event(wall_time=time.time(), step=step + 1, session_log=pb.SessionLog(status=pb.SessionLog.START))


def _value(name: str, value: float | str | bytes) -> Any:
    summary = import_module(f"{_PROTO}summary_pb2")
    if isinstance(value, str):
        shape = import_module(f"{_PROTO}tensor_shape_pb2").TensorShapeProto
        tensor = import_module(f"{_PROTO}tensor_pb2").TensorProto(
            dtype="DT_STRING", tensor_shape=shape(dim=[shape.Dim(size=1)]), string_val=[value.encode()]
        )
        plugin = summary.SummaryMetadata.PluginData(plugin_name="text")
        return summary.Summary.Value(tag=name, tensor=tensor, metadata=summary.SummaryMetadata(plugin_data=plugin))
    if isinstance(value, bytes):
        width, height = struct.unpack_from("<HH", value.ljust(10, b"\0"), 6)
        image = summary.Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=value)
        return summary.Summary.Value(tag=name, image=image)
    return summary.Summary.Value(tag=name, simple_value=value)
