"""What the Python code of a rank is doing, asked from outside, also while its main thread sits in C and holds the GIL.

Every rank registers a signal whose handler, written in C, appends the stacks of all its threads to a file of its own in
the run directory. Another rank's watch sends that signal and reads the file.

The signal is a real-time one that neither Python, torch nor the usual simulators use; SIGUSR1 and SIGUSR2 stay the
user's. A process that does not (or no longer) answer ignores it.
"""

import contextlib
import faulthandler
import os
import re
import signal
import threading
import time
from collections.abc import Generator
from pathlib import Path

SIGNAL = signal.SIGRTMAX - 2
ANSWER_S = 1.0
"""How long to wait for a stack."""
_LINES = 12
_HEADER = re.compile(r"^process (\d+), rank \d+, thread (0x[0-9a-f]+)$", re.MULTILINE)


def stack_file(logs: Path, rank: int) -> Path:
    """Where a rank's stacks are written: `logs/rank_R.stack`; a rank that ends well leaves it only if it was asked."""
    return logs / f"rank_{rank}.stack"


@contextlib.contextmanager
def answering(logs: Path, rank: int) -> Generator[None]:
    """Inside, this process answers with its stacks. A directory that cannot be written is no reason not to run."""
    path = stack_file(logs, rank)
    try:
        logs.mkdir(exist_ok=True)
        file = path.open("ab", buffering=0)
    except OSError:
        yield
        return
    with file:
        before = file.tell()
        try:
            header = f"process {os.getpid()}, rank {rank}, thread {threading.get_ident():#018x}\n"
            file.write(header.encode())
            after = file.tell()
            if threading.current_thread() is threading.main_thread():
                # What is restored by `unregister`: unhandled, a signal that comes too late would end the process.
                signal.signal(SIGNAL, signal.SIG_IGN)
            faulthandler.register(SIGNAL, file=file, all_threads=True)
        except OSError:  # the disk is full: without its header, nobody asks
            yield
            return
        try:
            yield
        finally:
            faulthandler.unregister(SIGNAL)
            with contextlib.suppress(OSError):
                if file.seek(0, os.SEEK_END) == after:  # nobody asked
                    file.truncate(before)
                    if before == 0:
                        path.unlink()


def ask(logs: Path, rank: int, pid: int) -> str:
    """The innermost calls of rank `rank`, process `pid` of this host, innermost first.

    They are those of the thread that entered `answering`. Empty if the process does not answer within `ANSWER_S`: it is
    stopped, has ended, or never promised to.
    """
    path = stack_file(logs, rank)
    try:
        headers = _HEADER.findall(path.read_text(errors="replace"))
        if not headers or int(headers[-1][0]) != pid:
            return ""
        before = path.stat().st_size
        os.kill(pid, SIGNAL)
    except OSError:
        return ""
    deadline, seen = time.monotonic() + ANSWER_S, b""
    while time.monotonic() < deadline:
        time.sleep(0.03)
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(before)
            # The handler writes in small pieces: what did not grow any more is complete.
            previous, seen = seen, file.read()
            if seen and seen == previous:
                break
    return _calls(seen.decode(errors="replace"), headers[-1][1])


def _calls(text: str, ident: str) -> str:
    """The calls of one thread in what faulthandler writes."""
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if f"hread {ident}" in line), None)
    if start is None:
        return ""
    calls: list[str] = []
    for line in lines[start + 1 :]:
        if not line.startswith("  "):
            break
        calls.append(line.strip())
    more = [f"... and {len(calls) - _LINES} more"] if len(calls) > _LINES else []
    return "\n".join(calls[:_LINES] + more)
