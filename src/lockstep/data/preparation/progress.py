"""Progress of a preparation: a bar on a terminal, lines of text elsewhere."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.record.text import grouped

if TYPE_CHECKING:
    from rich.progress import Progress

    from lockstep.record.console import Console

_LINE_EVERY_S = 5.0
"""Between two lines of text where there is no terminal."""


@dataclass(frozen=True, slots=True)
class PassProgress:
    """Progress of one pass over a log."""

    name: str
    """`reading` or `preparing`."""
    rows: int
    done_bytes: int
    total_bytes: int

    @property
    def fraction(self) -> float:
        """In [0, 1]."""
        return min(self.done_bytes / max(self.total_bytes, 1), 1.0)


Report = Callable[[PassProgress], None]


class ProgressDisplay:
    """Show the passes of one preparation: bytes, rows, rows/s and the time that is left."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._name = ""
        self._started_s = self._called_s = self._printed_s = time.monotonic()
        self._bar: Progress | None = None

    def __call__(self, progress: PassProgress) -> None:
        """Show the progress of the pass."""
        now = time.monotonic()
        if progress.name != self._name:
            self._name = progress.name
            self._bar = None
            self._started_s = self._called_s
        self._called_s = now
        elapsed_s = max(now - self._started_s, 1e-9)
        if self._console.is_terminal:
            self._draw(progress, progress.rows / elapsed_s)
        elif now - self._printed_s >= _LINE_EVERY_S:
            self._printed_s = now
            self._console.show(line(progress, elapsed_s))

    def _draw(self, progress: PassProgress, rate: float) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.table import Column

        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                TaskProgressColumn(),
                DownloadColumn(table_column=Column(no_wrap=True)),
                TextColumn(
                    "{task.fields[rows]:,} rows  {task.fields[rate]:,.0f} rows/s  ETA",
                    table_column=Column(no_wrap=True),
                ),
                TimeRemainingColumn(),
                auto_refresh=False,
            )
            self._bar.add_task(progress.name, total=progress.total_bytes, rows=0, rate=0.0)
        task = self._bar.task_ids[0]
        self._bar.update(task, completed=progress.done_bytes, rows=progress.rows, rate=rate)
        self._console.show(self._bar, last=progress.fraction == 1)


def line(progress: PassProgress, elapsed_s: float) -> str:
    """`reading 40 %  1.2 of 3.0 MB  4 000 rows  2 000 rows/s  ETA 3 s`."""
    part = progress.fraction
    rows, rate = grouped(progress.rows), grouped(progress.rows / elapsed_s)
    size = f"{progress.done_bytes / 1e6:.1f} of {progress.total_bytes / 1e6:.1f} MB"
    left = f"  ETA {elapsed_s / part - elapsed_s:.0f} s" if 0 < part < 1 else ""
    return f"{progress.name} {100 * part:.0f} %  {size}  {rows} rows  {rate} rows/s{left}"
