"""What the commands that list runs share: the console, colours, counts and settings as text."""

import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterable
from typing import TextIO

from rich.console import Console
from rich.table import Table

from lockstep.record.run_status import COMPLETE
from lockstep.record.text import grouped

STATUS_COLORS = {"solved": "green", "finished": "green", "running": "cyan", "failed": "red", "cut short": "red"}
_FILE_WIDTH = 10_000
"""Width of the output for a file or a pipe."""


def output_console() -> Console:
    """The console of the standard output."""
    return Console() if sys.stdout.isatty() else Console(width=_FILE_WIDTH)


@contextlib.contextmanager
def discarded_if_closed(file: TextIO) -> Generator[None]:
    """Discard what is printed there from now on if the terminal or pipe is closed, or the disk full.

    For output that is only shown: what it tells about goes on.
    """
    try:
        yield
        file.flush()
    except (OSError, ValueError, SystemExit):  # at a closed pipe Rich raises the last one
        with contextlib.suppress(OSError, ValueError):  # a file of Python alone
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, file.fileno())  # also for what Python still keeps, which it writes at exit
            os.close(nowhere)


def plain_table(header_style: str = "bold") -> Table:
    """A table without borders, two spaces between columns."""
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=header_style)


def steps_text(steps: int, total_steps: int | None, status: str) -> str:
    """`12 000`, or `12 000 (40%)` for a run that has not reached its end."""
    text = grouped(steps)
    if not total_steps or status in COMPLETE:
        return text
    return f"{text} ({min(steps / total_steps, 1):.0%})"


def tally(states: Iterable[str]) -> str:
    """`2 running, 3 done`, in the order of occurrence."""
    return ", ".join(f"{count} {state}" for state, count in Counter(states).items())


def shown_setting(value: object) -> str:
    """A setting as text: strings as they are, numbers with at most 6 significant digits, other values as JSON."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)
