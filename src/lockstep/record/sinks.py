"""Write metrics to `metrics.jsonl`, which is authoritative, and to TensorBoard event files."""

import json
import math
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, cast

from lockstep.record.tensorboard_events import event, start_after
from lockstep.record.trackers.code_version import code_version

_GIT_TIMEOUT_S = 2.0
"""How long the end of a run waits for the version of the code."""


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
    """Event files through the `tensorboard` package alone: scalars, and what lies beside them in the run directory.

    That is config, version of the code, videos and summary. Scalars are buffered for `flush_every_s`, and the package
    (0.2 s) is imported at the first flush: in a short run at its end, not between two rollouts. Without the package,
    one line is printed on stderr.
    """

    def __init__(self, directory: Path, flush_every_s: float = 5.0) -> None:
        self._directory, self._flush_every_s = directory, flush_every_s
        self._waiting: list[tuple[float, int, dict[str, float]]] = []
        self._flushed_s = time.monotonic()
        self._writer: Any = None
        self._purge_after: int | None = None
        self._asks_git: threading.Thread | None = None
        self._shown = set(self._videos())  # those of an earlier start of a resumed run

    def rewind(self, step: int) -> None:
        """Have TensorBoard ignore entries of earlier event files after `step`."""
        self._purge_after = step
        self._shown = {video for video in self._shown if video <= step}

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add scalars at a step; what is not finite is left out."""
        scalars = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        if scalars:
            self._waiting.append((time.time(), step, scalars))
        if time.monotonic() - self._flushed_s >= self._flush_every_s:
            self.flush()

    def flush(self) -> None:
        """Write buffered scalars and new videos to the disk."""
        self._flushed_s = time.monotonic()
        waiting, self._waiting = self._waiting, []
        if not waiting or not self._open():
            return
        try:
            for wall_time, step, scalars in waiting:
                self._writer.add_event(event(step, wall_time, scalars))
            videos = self._videos()
            for step in sorted(videos.keys() - self._shown):  # TensorBoard drops what is out of order
                self._shown.add(step)
                self._add(step, {"video": videos[step].read_bytes()})
            self._writer.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Flush, add the summary, and close; a later `write` starts another event file."""
        self.flush()
        if self._writer is not None:
            if self._asks_git is not None:
                self._asks_git.join(_GIT_TIMEOUT_S)
            with suppress(OSError, ValueError, LookupError, TypeError):  # another program may have written it
                text = (self._directory.parent / "summary.json").read_text(encoding="utf-8")
                self._add(int(json.loads(text)["env_steps"]), {"run/summary": _code_block(text)})
            with suppress(OSError):
                self._writer.close()
            self._writer = None

    def _add(self, step: int, values: Mapping[str, str | bytes]) -> None:
        self._writer.add_event(event(step, time.time(), values))

    def _videos(self) -> dict[int, Path]:
        """By step."""
        found = (self._directory.parent / "videos").glob("step_*.gif")
        return {int(step): video for video in found if (step := video.stem.removeprefix("step_")).isdecimal()}

    def _give_up(self, error: OSError) -> None:
        """On a full disk: `metrics.jsonl` has the same numbers."""
        self._flush_every_s, self._writer = math.inf, None
        _warn(f"no more TensorBoard files ({error.strerror})")

    def _open(self) -> bool:
        if self._writer is not None:
            return True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the package's own dependencies warn about each other
                module = import_module("tensorboard.summary.writer.event_file_writer")
        except ImportError:
            self._flush_every_s = math.inf
            print("lockstep: no TensorBoard files; the package is missing: pip install tensorboard", file=sys.stderr)
            return False
        try:
            self._writer = module.EventFileWriter(str(self._directory))
        except OSError as error:
            self._give_up(error)
            return False
        begin = self._purge_after or 0
        if self._purge_after is not None:
            self._writer.add_event(start_after(begin))
            self._purge_after = None
        with suppress(OSError, UnicodeDecodeError):
            config = (self._directory.parent / "run.yaml").read_text(encoding="utf-8")
            self._add(begin, {"run/config": _code_block(config)})
            framework = re.search(r"^ml_framework: (\w+)", config, re.MULTILINE)
            self._asks_git = threading.Thread(
                target=_add_code, args=(self._writer, begin, framework and framework[1]), daemon=True
            )
            self._asks_git.start()  # which may be slow
        return True


def _add_code(writer: Any, step: int, framework: str | None) -> None:
    text = _code_block(json.dumps(code_version(framework), indent=2))
    with suppress(OSError):  # closed meanwhile
        writer.add_event(event(step, time.time(), {"run/code": text}))


def _code_block(text: str) -> str:
    """As Markdown that keeps lines and spaces."""
    return f"```\n{text.rstrip()}\n```"


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
