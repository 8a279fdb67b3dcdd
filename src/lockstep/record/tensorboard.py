"""What TensorBoard shows of a run: metrics, config, version of the code, videos and summary."""

import json
import math
import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from lockstep.record.event_file import EventFile
from lockstep.record.trackers.code_version import code_version

_GIT_TIMEOUT_S = 2.0
"""How long the end of a run waits for the version of the code."""


class TensorBoard:
    """Metrics, and what lies beside `directory` in the run directory.

    Metrics are buffered, and the file is begun at the first flush: in a short run at its end, not between two rollouts.
    """

    def __init__(self, directory: Path, flush_every_s: float = 5.0) -> None:
        self._run_dir, self._flush_every_s = directory.parent, flush_every_s
        self._file = EventFile(directory)
        self._waiting: list[tuple[float, int, dict[str, float]]] = []
        self._flushed_s = time.monotonic()
        self._describes: threading.Thread | None = None
        self._shown = set(videos_of(self._run_dir))  # those of an earlier start of a resumed run

    def rewind(self, step: int) -> None:
        """Have TensorBoard ignore entries of earlier event files after `step`."""
        self._file.forget_after = step
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
        if not waiting or not (self._file.is_open or self._begin()):
            return
        for wall_time, step, scalars in waiting:
            self._file.add(step, scalars, wall_time)
        videos = videos_of(self._run_dir)
        for step in sorted(videos.keys() - self._shown):  # TensorBoard drops what is out of order
            self._shown.add(step)
            with suppress(OSError):
                self._file.add(step, {"video": videos[step].read_bytes()})
        self._file.flush()

    def close(self) -> None:
        """Flush, add the summary, and close; a later `write` starts another event file."""
        self.flush()
        if self._describes is not None:
            self._describes.join(_GIT_TIMEOUT_S)
        with suppress(OSError, ValueError, LookupError, TypeError):  # another program may have written it
            text = (self._run_dir / "summary.json").read_text(encoding="utf-8")
            self._file.add(int(json.loads(text)["env_steps"]), {"run/summary": _code_block(text)})
        self._file.close()

    def _begin(self) -> bool:
        """Begin an event file with config and version of the code; returns whether that was possible."""
        step = self._file.forget_after or 0
        if not self._file.open():
            return False
        self._describes = threading.Thread(target=_describe, args=(self._file, self._run_dir, step), daemon=True)
        self._describes.start()
        return True


def _describe(file: EventFile, run_dir: Path, step: int) -> None:
    """Add the config, and the version of the code, for which git may be slow."""
    with suppress(OSError, UnicodeDecodeError):
        config = (run_dir / "run.yaml").read_text(encoding="utf-8")
        file.add(step, {"run/config": _code_block(config)})
        framework = re.search(r"^ml_framework: (\w+)", config, re.MULTILINE)
        code = code_version(framework and framework[1])
        file.add(step, {"run/code": _code_block(json.dumps(code, indent=2))})


def videos_of(run_dir: Path) -> dict[int, Path]:
    """The videos of a run's evaluations, by step."""
    found = (run_dir / "videos").glob("step_*.gif")
    return {int(step): video for video in found if (step := video.stem.removeprefix("step_")).isdecimal()}


def _code_block(text: str) -> str:
    """As Markdown that keeps lines and spaces."""
    return f"```\n{text.rstrip()}\n```"
