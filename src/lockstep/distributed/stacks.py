"""Python stacks of another rank's process, also while its main thread is in C code and holds the GIL.

Every rank registers a signal handler, written in C, that appends the stacks of all its threads to a file in the run
directory. Another rank's watch sends that signal and reads the file.

It is a real-time signal that neither Python, torch nor common simulators use; SIGUSR1 and SIGUSR2 remain the user's. A
process that has not registered the handler, or no longer has it, ignores the signal.
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
"""Bound on waiting for a stack."""
_LINES = 12
_HEADER = re.compile(r"^process (\d+), rank \d+, thread (0x[0-9a-f]+)$", re.MULTILINE)


def stack_file(logs: Path, rank: int) -> Path:
    """The file for a rank's stacks, `logs/rank_R.stack`; removed at the end if none was requested."""
    return logs / f"rank_{rank}.stack"


@contextlib.contextmanager
def dumps_on_request(logs: Path, rank: int) -> Generator[None]:
    """Inside, this process dumps its stacks on request; not if the directory cannot be written."""
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
                # `unregister` restores this: a signal that comes too late must not end the process.
                signal.signal(SIGNAL, signal.SIG_IGN)
            faulthandler.register(SIGNAL, file=file, all_threads=True)
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
        os.kill(pid, SIGNAL)
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
    return _calls(seen.decode(errors="replace"), headers[-1][1])


def _calls(text: str, ident: str) -> str:
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
