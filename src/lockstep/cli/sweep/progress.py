"""Progress of the runs of a sweep: one live line each on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lockstep.cli.report.runs import read_run
from lockstep.cli.sweep.scores import is_estimated, score_of
from lockstep.cli.sweep.slots import Slot
from lockstep.cli.sweep.trial import SweepRun
from lockstep.cli.terminal import discarded_if_closed, tally
from lockstep.record.console import describe, redraws, speed_gives_eta
from lockstep.record.evaluations import mean_return
from lockstep.record.file_numbers import number_of, whole_number_of
from lockstep.record.text import grouped, significant

_PLAIN_EVERY_S = 30.0
"""Time between two plain lines of a run."""
_OTHER_LINES = 3
"""Lines of a terminal that are left free."""
_STYLES = {"done": "green", "failed": "red", "running": "cyan", "pruned": "yellow", "interrupted": "yellow"}


class ProgressLines:
    """The progress of all runs. Where the terminal or the pipe is closed, it is discarded, and the runs go on.

    Args:
        file: where to print.
        unit: of a run's steps.
    """

    def __init__(self, file: TextIO, unit: str = "steps") -> None:
        self._unit = unit
        self._file = file
        self._runs: list[SweepRun] = []
        self._texts: dict[str, str] = {}
        self._printed_at: dict[str, float] = {}
        self._waiting: set[str] = set()
        self._live: Live | None = None
        if redraws(file):
            # No refresh thread: what starts runs is the only thread.
            self._live = Live(console=Console(file=file), auto_refresh=False)
            with discarded_if_closed(file):
                self._live.start()

    def add(self, sweep_run: SweepRun, *, ended_before: bool = False) -> None:
        """Show a new run; one that has ended did so in this start, or before."""
        self._runs.append(sweep_run)
        if sweep_run.status != "queued":
            self.ended(sweep_run, " before" * ended_before)

    def waiting(self, sweep_run: SweepRun) -> None:
        """Show once that a process of an earlier start still trains a run."""
        if sweep_run.name not in self._waiting:
            self._waiting.add(sweep_run.name)
            self.note(f"{sweep_run.name}: waiting for an earlier process to end")

    def started(self, sweep_run: SweepRun, *, resumed: bool, slot: Slot) -> None:
        """Show that a run starts."""
        self._texts[sweep_run.name] = f"{'resumes' if resumed else 'starts'} on {slot.place}"
        self._printed_at[sweep_run.name] = time.monotonic()
        self._print(f"{sweep_run.name}: {self._texts[sweep_run.name]}")

    def update(
        self, sweep_run: SweepRun, metrics: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]
    ) -> None:
        """Show what a run has written: the last two lines of its metrics, and its evaluations."""
        if not metrics:
            return
        last = metrics[-1]
        mean = mean_return(evaluations[-1].get("returns")) if evaluations else None
        mean = number_of(last.get("episode/return_mean_100")) if mean is None else mean
        step, speed = whole_number_of(last.get("step")) or 0, number_of(last.get("time/steps_per_second")) or 0.0
        if sweep_run.total_steps is None:
            text = f"{grouped(step)} {self._unit}  {grouped(speed)} {self._unit}/s"
        else:
            before = metrics[-2] if len(metrics) > 1 else dict[str, Any]()
            eta = speed_gives_eta(last, before, has_replay=sweep_run.has_replay)
            text = describe(step, sweep_run.total_steps, speed, mean, self._unit, eta=eta)
        self._texts[sweep_run.name] = text
        now = time.monotonic()
        if now - self._printed_at.get(sweep_run.name, 0.0) >= _PLAIN_EVERY_S:
            self._printed_at[sweep_run.name] = now
            self._print(f"{sweep_run.name}: {text}")

    def ended(self, sweep_run: SweepRun, when: str = "") -> None:
        """Show the end of a run: the return, or the reason of its failure."""
        mean = score_of(sweep_run, "last_return")
        detail = sweep_run.reason or ""
        if mean is not None:
            word = "estimate" if is_estimated(read_run(sweep_run.path), "last_return") else "return"
            detail = f"{word} {significant(mean)}"
        self._texts[sweep_run.name] = detail
        self._print(f"{sweep_run.name}: {sweep_run.status}{when}" + (f", {detail}" if detail else ""))

    def note(self, text: str) -> None:
        """Show a line that stays."""
        if self._live is None:
            self._print(text)
            return
        with discarded_if_closed(self._file):
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def draw(self) -> None:
        """Redraw the lines of a terminal."""
        if self._live is None:
            return
        shown = self._runs
        room = max(1, self._live.console.height - _OTHER_LINES)
        if len(shown) > room:
            running = [sweep_run for sweep_run in shown if sweep_run.status == "running"]
            others = [sweep_run for sweep_run in shown if sweep_run.status not in ("running", "queued")]
            shown = [*others[max(0, len(others) - max(0, room - len(running))) :], *running][-room:]
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for sweep_run in shown:
            state = Text(sweep_run.status, style=_STYLES.get(sweep_run.status, "dim"))
            table.add_row(Text(sweep_run.name), state, Text(self._texts.get(sweep_run.name, "")))
        with discarded_if_closed(self._file):
            self._live.update(Group(table, Text(self.counts(), style="dim")), refresh=True)

    def counts(self) -> str:
        """`2 running, 3 done, 1 failed`."""
        return tally(sweep_run.status for sweep_run in self._runs)

    def close(self) -> None:
        """Draw the final state."""
        if self._live is not None:
            self.draw()
            with discarded_if_closed(self._file):
                self._live.stop()
            self._live = None

    def _print(self, text: str) -> None:
        if self._live is None:
            with discarded_if_closed(self._file):
                print(text, file=self._file)
