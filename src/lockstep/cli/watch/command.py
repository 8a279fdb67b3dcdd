"""`lockstep watch`: redraw the screen until q is pressed. Changes no file."""

import argparse
import contextlib
import difflib
import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Generator
from pathlib import Path

from rich.console import Console
from rich.live import Live

from lockstep.cli.parser import did_you_mean
from lockstep.cli.report.runs import find_runs, is_run, runs_below
from lockstep.cli.watch.frame import frame
from lockstep.cli.watch.watched_run import WatchedRun
from lockstep.errors import ConfigError
from lockstep.launch.flags import seconds_of
from lockstep.launch.signals import caught_signals
from lockstep.record.console import redraws
from lockstep.record.readable import check_readable
from lockstep.record.run_dir import RUN_FILE, SWEEP_FILE
from lockstep.record.run_status import written_at

_ONCE_HEIGHT = 26
_ONCE_WIDTH = 100
_STEP = {"n": 1, "\x1b[C": 1, "\x1b[B": 1, "p": -1, "\x1b[D": -1, "\x1b[A": -1}
"""Keys that choose the next or the previous curve; also the arrow keys."""
_KEY = re.compile(r"\x1b\[[A-D]|.", re.DOTALL)
"""One key, of those that were pressed between two looks."""
_POLL_S = 0.2


def watch_command(args: argparse.Namespace) -> int:
    """`lockstep watch`; returns the exit code."""
    every_s = seconds_of(args.every, "--every")
    if args.run == "":
        raise ConfigError("RUN is empty; name a run directory: lockstep watch RUN")
    run = WatchedRun(Path(args.run) if args.run is not None else _newest())
    _check(run.path)
    if args.once or not redraws(sys.stdout):
        if not is_run(run.path):
            state = f"holds no run (no {RUN_FILE})" if run.path.exists() else "does not exist"
            raise ConfigError(f"{run.path} {state}; without --once, in a terminal, watch waits for it")
        run.update()
        _check_metric(run, args.metric)
        console = Console() if sys.stdout.isatty() else Console(width=_width())
        console.print(frame(run, args.metric, console.width, _ONCE_HEIGHT, by_seconds=False, keys=False))
        return 0
    return _Screen(run, args.metric, every_s).loop()


def _width() -> int:
    """Of a picture that goes into a file or a pipe."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) > 0 else _ONCE_WIDTH


class _Screen:
    """The screen and its keys.

    Args:
        run: what is shown.
        metric: the curve; None: the first that there is.
        every_s: seconds between two looks at the files.
    """

    def __init__(self, run: WatchedRun, metric: str | None, every_s: float) -> None:
        self._run, self._metric, self._every_s = run, metric, every_s
        self._by_seconds = False
        self._console = Console()

    def loop(self) -> int:
        """Draw until q or a signal; returns the exit code."""
        has_keys = sys.stdin.isatty()
        keys = _single_keys(sys.stdin.fileno()) if has_keys else contextlib.nullcontext()
        with caught_signals() as caught, keys, Live(console=self._console, screen=True, auto_refresh=False) as live:
            read_at = -self._every_s
            while not caught:
                changed = time.monotonic() - read_at >= self._every_s
                if changed:
                    _check(self._run.path)  # several runs may appear where one was waited for
                    self._run.update()
                    read_at = time.monotonic()
                pressed = _keys(_POLL_S) if has_keys else _no_keys(_POLL_S)
                if "q" in pressed:
                    break
                if any([self._press(key) for key in pressed]) or changed:  # a list: every key acts
                    width, height = self._console.size
                    shown = frame(
                        self._run, self._metric, width, height - 1, by_seconds=self._by_seconds, keys=has_keys
                    )
                    live.update(shown, refresh=True)
        return 0

    def _press(self, key: str) -> bool:
        """Act on a key; returns whether the screen changes."""
        names = self._run.names()
        if key == "x":
            self._by_seconds = not self._by_seconds
        elif key == "1":
            self._metric = None
        elif key in _STEP and names:
            shown = self._metric if self._metric in names else self._run.first_name()
            at = names.index(shown) if shown is not None else 0
            self._metric = names[(at + _STEP[key]) % len(names)]
        else:
            return False
        return True


def _newest() -> Path:
    """The run below `runs/` that was written last."""
    if not Path("runs").is_dir():
        raise ConfigError("there is no runs/ here; name a run directory: lockstep watch RUN")
    return max(find_runs([Path("runs")]), key=written_at)


def _check(path: Path) -> None:
    """Refuse a file, a closed directory, and a directory of several runs."""
    check_readable(path)
    if path.is_file():
        raise ConfigError(f"{path} is a file; give the run directory, such as {path.parent}")
    if not path.exists() or is_run(path):
        return
    is_sweep, runs = (path / SWEEP_FILE).is_file(), runs_below(path)
    if runs or is_sweep:
        kind = "a sweep" if is_sweep else "a directory"
        example = f", such as {max(runs, key=written_at)}" if runs else ""
        raise ConfigError(f"{path} is {kind} of several runs; name one of them{example}")


def _check_metric(run: WatchedRun, name: str | None) -> None:
    names = run.names()
    if name is not None and names and name not in names:
        near = did_you_mean(difflib.get_close_matches(name, names))
        raise ConfigError(f"--metric {name} is not in {run.path}; {near or 'it has ' + ', '.join(names)}")


@contextlib.contextmanager
def _single_keys(descriptor: int) -> Generator[None]:
    """Have the terminal pass each key at once, and show none."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _keys(timeout_s: float) -> list[str]:
    """The keys that were pressed within a time, in their order: several where they come faster than the screen."""
    with contextlib.suppress(InterruptedError):
        if select.select([sys.stdin], [], [], timeout_s)[0]:
            return _KEY.findall(os.read(sys.stdin.fileno(), 1024).decode(errors="replace"))
    return []


def _no_keys(timeout_s: float) -> list[str]:
    time.sleep(timeout_s)
    return []
