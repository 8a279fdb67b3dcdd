"""Progress of a preparation, on a terminal and in a file."""

import io

import pytest

from lockstep.data.preparation import progress
from lockstep.data.preparation.progress import PassProgress, ProgressDisplay, line
from lockstep.record.console import Console

HALF = PassProgress("reading", rows=4000, done_bytes=1_500_000, total_bytes=3_000_000)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_line_has_bytes_rows_rate_and_eta():
    assert line(HALF, 2.0) == "reading 50 %  1.5 of 3.0 MB  4 000 rows  2 000 rows/s  ETA 2 s"
    whole = PassProgress("preparing", rows=10, done_bytes=70, total_bytes=70)
    assert line(whole, 2.0) == "preparing 100 %  0.0 of 0.0 MB  10 rows  5 rows/s"


def test_fraction_of_an_empty_log_is_zero():
    assert PassProgress("reading", rows=0, done_bytes=0, total_bytes=0).fraction == 0


def test_terminal_shows_a_bar_of_the_current_pass():
    file = Terminal()
    console = Console(file)
    display = ProgressDisplay(console)
    display(HALF)
    display(PassProgress("reading", 8000, 3_000_000, 3_000_000))
    display(PassProgress("preparing", 8000, 5_000_000, 5_000_000))
    console.close()
    shown = file.getvalue()
    for text in ("reading", " 50%", "1.5/3.0 MB", "4,000 rows", "rows/s", "ETA", "preparing", "5.0/5.0 MB"):
        assert text in shown, shown


@pytest.mark.parametrize(("every_s", "lines"), [(0.0, 2), (60.0, 0)])
def test_file_gets_lines_at_intervals(monkeypatch, every_s, lines):
    monkeypatch.setattr(progress, "_LINE_EVERY_S", every_s)
    file = io.StringIO()
    display = ProgressDisplay(Console(file))
    display(HALF)
    display(PassProgress("reading", 8000, 3_000_000, 3_000_000))
    assert len(file.getvalue().splitlines()) == lines
