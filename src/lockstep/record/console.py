"""Rank 0's output during a run: one live line on a terminal, plain lines elsewhere and in its log."""

import os
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from lockstep.record.rank_log import Tee
from lockstep.record.text import duration, grouped, significant

if TYPE_CHECKING:
    from rich.console import RenderableType

_REDRAW_S = 0.1
_TERMINAL = "LOCKSTEP_TERMINAL_FD"
_LEARNED = "optim/learning_rate"
"""A metric of a run with a replay, in every log line with gradient steps since the line before."""
_DUMB = ("dumb", "unknown")
"""Values of `TERM` for terminals that only append; Rich draws nothing live on them."""


class Console:
    """Rank 0's output for the user. A closed pipe (`| head`) silences it, and never ends the run.

    Default file: the launcher's terminal (`LOCKSTEP_TERMINAL_FD`) if this rank's own output goes to a log, else stdout.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        terminal = _launchers_terminal() if file is None else None
        self._owned = terminal is not None
        shown = file or (sys.stdout if terminal is None else os.fdopen(os.dup(terminal), "w", encoding="utf-8"))
        self._file = shown.terminal if isinstance(shown, Tee) else shown
        self._log = shown.log if isinstance(shown, Tee) else None
        self._live: Any = None
        self._drawn_s = 0.0
        self._silent = False

    def line(self, text: str) -> None:
        """Show one line that stays."""
        with self._shown():
            if self._live is not None:
                self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
            elif not self._silent:
                print(text, file=self._file, flush=True)
        self._keep(text)

    def progress(
        self,
        *,
        steps: int,
        total_steps: int,
        steps_per_second: float,
        return_mean: float | None,
        unit: str = "steps",
        device_memory: int = 0,
        eta: bool = True,
    ) -> None:
        """Show the progress of the run: redraw the live line, or print one; call it once per log interval."""
        text = describe(steps, total_steps, steps_per_second, return_mean, unit, device_memory, eta=eta)
        self.show(text, last=steps >= total_steps)
        self._keep(text)

    def show(self, shown: "RenderableType", *, last: bool = False) -> None:
        """Redraw the live line with any text or rich object, or print it; `last` is drawn in any case."""
        if self._silent:
            return
        now = time.monotonic()
        with self._shown():
            if not self.is_terminal:
                print(str(shown), file=self._file, flush=True)
            elif now - self._drawn_s >= _REDRAW_S or last:
                self._drawn_s = now
                self._draw(shown)

    @property
    def is_terminal(self) -> bool:
        """Whether the output is a terminal, where the live line is redrawn."""
        return redraws(self._file)

    def close(self) -> None:
        """Remove the live line; what was printed by `line` stays."""
        with self._shown():
            if self._live is not None:
                self._live.stop()
                self._live = None
        if self._owned:
            self._silent = True
            with suppress(OSError):
                self._file.close()

    def _draw(self, shown: "RenderableType") -> None:
        from rich.console import Console as RichConsole
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            console = RichConsole(file=self._file, soft_wrap=True)
            # No refresh thread: it would compete with the training loop for the interpreter lock.
            self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
            self._live.start()
        line = Text(shown, no_wrap=True, overflow="ellipsis") if isinstance(shown, str) else shown
        self._live.update(line, refresh=True)

    @contextmanager
    def _shown(self) -> Generator[None]:
        """Show nothing from now on if the pipe or the terminal is closed, or the disk full; the log has all lines."""
        try:
            yield
        except (OSError, ValueError):
            self._silent, self._live = True, None

    def _keep(self, text: str) -> None:
        """Write the text to this rank's log; a full disk is ignored."""
        with suppress(OSError, ValueError):
            if self._owned:  # not through Python's buffer, which would retry failed writes at exit
                sys.stdout.flush()
                os.write(sys.stdout.fileno(), f"{text}\n".encode())
            elif self._log is not None:
                print(text, file=self._log)


def terminal_variable(descriptor: int) -> dict[str, str]:
    """For the environment of a rank that inherits this descriptor of the launcher's terminal.

    Processes that the rank starts inherit the variable alone: another file may have the number there.
    """
    status = os.fstat(descriptor)
    return {_TERMINAL: f"{descriptor}:{status.st_dev}:{status.st_ino}"}


def _launchers_terminal() -> int | None:
    """The descriptor of the launcher's terminal, if this rank has inherited it."""
    given = os.environ.get(_TERMINAL, "")
    descriptor = given.partition(":")[0]
    with suppress(OSError):
        if descriptor.isdigit() and terminal_variable(int(descriptor))[_TERMINAL] == given:
            return int(descriptor)
    return None


def redraws(file: TextIO) -> bool:
    """Whether a file is a terminal on which a line can be redrawn: not one without cursor movement (`TERM=dumb`).

    Open MPI gives each rank a terminal, and writes what it reads from it into what may be a file.
    """
    of_mpirun = "OMPI_COMM_WORLD_RANK" in os.environ
    return file.isatty() and not of_mpirun and os.environ.get("TERM", "").lower() not in _DUMB


def describe(
    steps: int,
    total_steps: int,
    steps_per_second: float,
    return_mean: float | None,
    unit: str = "steps",
    device_memory: int = 0,
    *,
    eta: bool = True,
) -> str:
    """One line of progress: `40 960 / 500 000 steps (8 %)  52 000 steps/s  return 123.4  GPU 1.3 GiB  ETA 9 s`.

    `device_memory` is the most memory of a GPU that a rank has used, in bytes; 0 on CPUs. `eta`: whether this speed
    tells when the run ends.
    """
    parts = [f"{grouped(steps)} / {grouped(total_steps)} {unit} ({min(100 * steps / total_steps, 100):.0f} %)"]
    speed = f"{steps_per_second:.2g}" if 0 < steps_per_second < 1 else grouped(steps_per_second)
    parts.append(f"{speed} {unit}/s")
    if return_mean is not None and return_mean == return_mean:
        parts.append(f"return {significant(return_mean)}")
    if device_memory:
        parts.append(f"GPU {device_memory / 2**30:.1f} GiB")
    if eta and steps_per_second > 0:
        parts.append(f"ETA {duration(max(total_steps - steps, 0) / steps_per_second)}")
    return "  ".join(parts)


def learns(line: Mapping[str, Any], *, has_replay: bool) -> bool:
    """Whether gradient steps were taken since the log line before: not while steps only fill a replay."""
    return not has_replay or _LEARNED in line


def speed_gives_eta(line: Mapping[str, Any], before: Mapping[str, Any], *, has_replay: bool) -> bool:
    """Whether the speed of a log line tells when the run ends.

    Not the speed of the first line with gradient steps: some of its steps only filled the replay, at a higher speed.
    `before` is the line before; empty at the start.
    """
    return learns(before, has_replay=has_replay) and learns(line, has_replay=has_replay)
