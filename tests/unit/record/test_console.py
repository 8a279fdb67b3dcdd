"""One live line on a terminal, plain lines elsewhere."""

import contextlib
import io
import os
import pty
import subprocess
import sys

import pytest

from lockstep.record.console import Console, describe, terminal_variable
from lockstep.record.rank_log import RankLog


def test_progress_names_steps_speed_return_and_eta():
    assert describe(40_960, 500_000, 52_000.4, 123.44) == (
        "40 960 / 500 000 steps (8 %)  52 000 steps/s  return 123.4  ETA 9 s"
    )
    assert "return 0.8512 " in describe(1, 10, 1.0, 0.85123)
    assert describe(0, 10, 0.0, None) == "0 / 10 steps (0 %)  0 steps/s"
    assert "(10 %)  0.25 steps/s" in describe(1, 10, 0.25, None)
    assert "return" not in describe(1, 10, 1.0, float("nan"))
    assert describe(12, 10, 1.0, None).endswith("ETA 0 s")
    assert describe(1, 10, 1.0, None, eta=False) == "1 / 10 steps (10 %)  1 steps/s"
    assert "return 1.000  GPU 1.5 GiB  ETA" in describe(1, 10, 1.0, 1.0, device_memory=3 << 29)


@pytest.mark.parametrize(
    ("seconds", "text"), [(59, "59 s"), (61, "1 min 01 s"), (3599, "59 min 59 s"), (7380, "2 h 03 min")]
)
def test_eta_in_words(seconds, text):
    assert describe(0, seconds, 1.0, None).endswith(f"ETA {text}")


def test_plain_lines_when_not_a_terminal():
    file = io.StringIO()
    console = Console(file)
    console.line("run: [bold]runs/a[/bold]")
    console.progress(steps=5, total_steps=10, steps_per_second=5.0, return_mean=1.0)
    console.close()
    assert file.getvalue() == "run: [bold]runs/a[/bold]\n5 / 10 steps (50 %)  5 steps/s  return 1.000  ETA 1 s\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "plain"),
    [
        ({"TERM": "dumb"}, True),
        ({"TERM": "unknown"}, True),
        ({"TERM": "xterm"}, False),
        ({"TERM": "xterm", "OMPI_COMM_WORLD_RANK": "0"}, True),  # whose terminal may end in a file
    ],
)
def test_terminal_that_cannot_redraw_gets_plain_lines(monkeypatch, variables, plain):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    file = Terminal()
    console = Console(file)
    assert console.is_terminal == (not plain)
    console.progress(steps=5, total_steps=10, steps_per_second=5.0, return_mean=1.0)
    console.close()
    text = "5 / 10 steps (50 %)  5 steps/s  return 1.000  ETA 1 s"
    assert text in file.getvalue() and (file.getvalue() == f"{text}\n") == plain


def test_the_launchers_terminal_is_used_when_told(monkeypatch, capfd):
    reader, writer = os.pipe()
    monkeypatch.setenv("LOCKSTEP_TERMINAL_FD", terminal_variable(writer)["LOCKSTEP_TERMINAL_FD"])
    console = Console()
    console.line("hello")
    console.progress(steps=5, total_steps=10, steps_per_second=5.0, return_mean=None)
    console.close()
    os.write(writer, b"still open\n")  # it belongs to the launcher
    os.close(writer)
    with open(reader) as file:
        assert file.read() == "hello\n5 / 10 steps (50 %)  5 steps/s  ETA 1 s\nstill open\n"
    assert capfd.readouterr().out == "hello\n5 / 10 steps (50 %)  5 steps/s  ETA 1 s\n", "and this rank's own log"


def test_another_file_of_that_number_is_left_alone(monkeypatch, capsys):
    """As in a training that a rank starts: its own pipe for signals took a line for a signal."""
    reader, writer = os.pipe()
    monkeypatch.setenv("LOCKSTEP_TERMINAL_FD", terminal_variable(writer)["LOCKSTEP_TERMINAL_FD"])
    other, there = os.pipe()
    os.dup2(there, writer)
    for descriptor in (there, reader):
        os.close(descriptor)
    Console().line("hello")
    os.close(writer)
    with open(other) as file:
        assert file.read() == ""
    Console().line("again")
    assert capsys.readouterr().out == "hello\nagain\n"


def test_a_log_that_cannot_be_written_ends_no_run(monkeypatch, capfd):
    monkeypatch.setenv("LOCKSTEP_TERMINAL_FD", terminal_variable(2)["LOCKSTEP_TERMINAL_FD"])
    with open("/dev/full", "w") as full, monkeypatch.context() as changed:
        changed.setattr("sys.stdout", full)
        console = Console()
        console.line("hello")
        console.close()
    assert capfd.readouterr().err == "hello\n"


def test_a_rank_that_is_its_own_launcher_logs_what_it_shows_and_what_it_showed_before(tmp_path, capsys):
    log = RankLog(tmp_path, 0, ["first"])
    console = Console()
    console.line("second")
    console.progress(steps=5, total_steps=10, steps_per_second=5.0, return_mean=None)
    console.close()
    log.close()
    kept = (tmp_path / "logs" / "rank_0.log").read_text()
    assert kept == "first\nsecond\n5 / 10 steps (50 %)  5 steps/s  ETA 1 s\n"
    assert capsys.readouterr().out == kept.removeprefix("first\n")


def test_a_reader_that_left_does_not_end_the_run(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setenv("LOCKSTEP_TERMINAL_FD", terminal_variable(writer)["LOCKSTEP_TERMINAL_FD"])
    console = Console()
    for _ in range(3):
        console.line("x" * 100_000)
    console.close()
    os.close(writer)


def test_a_terminal_that_is_gone_does_not_end_the_run(monkeypatch):
    reader, writer = os.openpty()
    monkeypatch.setenv("LOCKSTEP_TERMINAL_FD", terminal_variable(writer)["LOCKSTEP_TERMINAL_FD"])
    console = Console()
    assert console.is_terminal
    os.close(reader)
    console.line("one")
    console.progress(steps=1, total_steps=2, steps_per_second=1.0, return_mean=None)
    console.close()
    os.close(writer)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has this file")
def test_a_full_disk_ends_neither_a_line_nor_the_log(tmp_path, capsys):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank_0.log").symlink_to("/dev/full")
    log = RankLog(tmp_path, 0)
    print("two")
    log.close()
    full = open("/dev/full", "w", buffering=1)  # noqa: SIM115  # its close fails
    try:
        console = Console(file=full)
        for _ in range(2):
            console.line("one")
        assert console._silent
    finally:
        with contextlib.suppress(OSError):  # what it kept cannot be written
            full.close()
    assert capsys.readouterr().out == "two\n"


def test_a_terminal_gets_a_live_line_that_goes_and_lines_that_stay():
    code = """
from lockstep.record import console as module
from lockstep.record.console import Console
import sys
module.time.monotonic = lambda: 1000.0  # no time passes between two redraws
console = Console()
assert "rich" not in sys.modules
console.progress(steps=1, total_steps=10, steps_per_second=1.0, return_mean=None)
assert "rich" in sys.modules
console.progress(steps=2, total_steps=10, steps_per_second=1.0, return_mean=None)
console.line("evaluated [100]")
console.progress(steps=10, total_steps=10, steps_per_second=1.0, return_mean=None)
console.close()
"""
    leader, follower = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=follower, stderr=subprocess.PIPE, env=environment, text=True
    )
    os.close(follower)
    shown = os.read(leader, 65536).decode()
    os.close(leader)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 / 10 steps" in shown
    assert "2 / 10 steps" not in shown  # within 0.1 s of the first
    assert "evaluated [100]" in shown
    assert "10 / 10 steps" in shown
    assert shown.rstrip("\x1b[?25h\r\n").endswith("\x1b[2K")  # erased at the end
