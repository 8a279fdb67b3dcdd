"""Python stack of another rank's thread, also while it is in C code and holds the GIL.

Every rank registers a signal handler, written in C, that appends the stack of the thread that it interrupts to a file
in the run directory. Another rank's watch sends that signal to the thread that trains and reads the file. The handler
does not wait for the GIL, so it must not read the stacks of other threads: they may run meanwhile, and a frame that
they have just left is memory that may be gone.

It is a real-time signal that neither Python, torch nor common simulators use; SIGUSR1 and SIGUSR2 remain the user's. A
process that has not registered the handler, or no longer has it, ignores the signal.
"""

import contextlib
import ctypes
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
"""Bound on waiting for a stack."""
_LINES = 12
_HEADER = re.compile(r"^process (\d+), rank \d+, thread (\d+)$", re.MULTILINE)


def stack_file(logs: Path, rank: int) -> Path:
    """The file for a rank's stacks, `logs/rank_R.stack`; removed at the end if none was requested."""
    return logs / f"rank_{rank}.stack"


@contextlib.contextmanager
def dumps_on_request(logs: Path, rank: int) -> Generator[None]:
    """Inside, this thread's stack is dumped on request; not if the directory cannot be written."""
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
            header = f"process {os.getpid()}, rank {rank}, thread {threading.get_native_id()}\n"
            file.write(header.encode())
            after = file.tell()
            if threading.current_thread() is threading.main_thread():
                # `unregister` restores this: a signal that comes too late must not end the process.
                signal.signal(SIGNAL, signal.SIG_IGN)
            faulthandler.register(SIGNAL, file=file, all_threads=False)
        except OSError:  # the disk is full; without a header no rank sends a request
            yield
            return
        try:
            yield
        finally:
            faulthandler.unregister(SIGNAL)
            with contextlib.suppress(OSError):
                if file.seek(0, os.SEEK_END) == after:  # none was requested
                    file.truncate(before)
                    if before == 0:
                        path.unlink()


def request(logs: Path, rank: int, pid: int) -> str:
    """The calls of rank `rank`, process `pid` of this host, innermost first.

    They are those of the thread that entered `dumps_on_request`. Empty if there is no reply within `ANSWER_S`: the
    process is stopped, has ended, or has not entered it.
    """
    path = stack_file(logs, rank)
    try:
        headers = _HEADER.findall(path.read_text(errors="replace"))
        if not headers or int(headers[-1][0]) != pid:
            return ""
        before = path.stat().st_size
        _signal_thread(pid, int(headers[-1][1]))
    except OSError:
        return ""
    deadline, seen = time.monotonic() + ANSWER_S, b""
    while time.monotonic() < deadline:
        time.sleep(0.03)
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(before)
            # The handler writes in small pieces: a dump that no longer grows is complete.
            previous, seen = seen, file.read()
            if seen and seen == previous:
                break
    return _calls(seen.decode(errors="replace"))


def _signal_thread(pid: int, thread: int) -> None:
    """Send the signal to one thread of a process, by its native id.

    Before glibc 2.30, to the process: the kernel then chooses the main thread unless that one blocks the signal.
    """
    send = getattr(ctypes.CDLL(None, use_errno=True), "tgkill", None)
    if send is None:
        os.kill(pid, SIGNAL)
    elif send(pid, thread, SIGNAL) != 0:
        raise OSError(ctypes.get_errno(), f"thread {thread} of process {pid} cannot be signalled")


def _calls(text: str) -> str:
    calls = [line.strip() for line in text.splitlines() if line.startswith("  ")]
    more = [f"... and {len(calls) - _LINES} more"] if len(calls) > _LINES else []
    return "\n".join(calls[:_LINES] + more)
