"""Stall detection: a thread in every rank monitors the ranks of its host.

A rank is stuck if it stays in one phase beyond a timeout without waiting for others, or if its process is stopped. The
first thread to detect it writes one report: the rank, its phase, for how long, what the others wait in, and the stack
of the stuck rank. Then every rank exits.

Native code that holds the global interpreter lock stops this thread too: it is noticed only by ranks on which it does
not run, hence not in a world of one.
"""

import contextlib
import fcntl
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from lockstep.distributed import stacks
from lockstep.distributed.ranges import ranges
from lockstep.distributed.timers import BEHIND, CHECKPOINT, OTHER, PHASE, PHASES, PID, SINCE_NS, SYNC, UPDATES, WAIT
from lockstep.errors import PEER_DELAY_S

MARGIN_S = 2.0
"""How much later than the watch a collective times out: the report of the watch is more precise, and takes up to half a
second to detect the stall and a second to read the stack."""

STALL_FILE = "stall.txt"
"""The reports of a run, in its `logs/`."""

_DOING = {"env": "env.step", "learn": "the update", "other": "its own code"}
_SIGNAL_GRACE_S = 8.0
"""How long a rank may stay in one phase after a signal; longer if it has stayed longer in one before."""
_SLOWER = 1.5
_PAUSE_S = 2.0  # after a longer gap this thread was stopped itself, perhaps with the whole job

State = Literal["running", "stopped", "traced", "ended"]


@dataclass(frozen=True, slots=True)
class Observed:
    """The state of one rank of this host."""

    rank: int
    state: State
    """Of its process: "stopped" by a signal (SIGSTOP, Ctrl-Z), "traced" by a debugger."""
    phase: int
    seconds: float
    """How long it has been in the phase."""
    updates: int
    tag: str = ""
    """The collective it entered last."""
    entered: int = 0
    """How many collectives it has entered; the rank with the fewest keeps the others waiting."""
    pid: int = 0
    behind: int = 0
    """Updates of earlier starts of the run. With its first own update, a process has started up."""

    @property
    def runs(self) -> bool:
        """Whether the process is neither stopped nor ended."""
        return self.state == "running"

    @property
    def doing(self) -> str:
        """The phase in words, with the name of a collective."""
        name = PHASES[self.phase]
        return self.tag or "a collective" if self.phase in (SYNC, WAIT) else _DOING.get(name, name)

    def __str__(self) -> str:
        return f"{self.doing}, update {self.updates + 1}"


def stuck(ranks: list[Observed], timeout_s: float, startup_timeout_s: float) -> Observed | None:
    """The rank that keeps the others waiting, once one is beyond its timeout; never one that only waits.

    A stopped process comes first, then the rank that has entered the fewest collectives (on GPUs a rank can be ahead of
    the others and wait for its device), then the one that has been in its phase for longest.
    """

    def late(o: Observed) -> bool:
        beyond = o.seconds > (timeout_s if o.updates > o.behind else startup_timeout_s)
        return beyond and (o.state in ("stopped", "traced") or (o.runs and o.phase != WAIT))

    if not any(late(o) for o in ranks):
        return None
    suspects = [o for o in ranks if late(o) or (o.runs and o.phase != WAIT)]
    return min(suspects, key=lambda o: (o.runs, o.entered, not late(o), -o.seconds))


def report(culprit: Observed, ranks: list[Observed]) -> str:
    """One line: the stuck rank, its phase, for how long, and what the others wait in."""
    who, how_long = f"rank {culprit.rank}", f"for {culprit.seconds:.0f} s"
    if culprit.state == "stopped":
        text = f"{who} is stopped (SIGSTOP) in {culprit}, {how_long}; continue it with `kill -CONT {culprit.pid}`"
    elif culprit.state == "traced":
        text = f"{who} is held by a debugger in {culprit}, {how_long}; let it continue there (process {culprit.pid})"
    else:
        text = f"{who} has been in {culprit} {how_long}"
    groups: dict[str, list[int]] = {}
    for other in ranks:
        if other.rank != culprit.rank:
            what = f"wait in {other}" if other.phase == WAIT else f"are in {other}"
            if not other.runs:
                what = "have ended" if other.state == "ended" else "are stopped"
            groups.setdefault(what, []).append(other.rank)
    for what, members in groups.items():
        one = len(members) == 1
        singular = what.replace("wait", "waits", 1).replace("are ", "is ", 1).replace("have", "has", 1)
        text += f"; rank{'' if one else 's'} {ranges(members)} {singular if one else what}"
    return text


class Watch:
    """Monitors all ranks of this host a few times a second, until `close`.

    Args:
        observe: the current state of this host's ranks.
        on_stall: called in this thread with the stuck rank and the report (first line: rank and phase; then the stack);
            afterwards the process exits with 1.
        signalled: when a signal asked this process to stop (monotonic seconds) and which one; None: none did.
        timeout_s: bound on any phase after the first update.
        startup_timeout_s: bound before it.
        before_exit: called with the report's first line on every rank that detects the stall, before it exits.
        logs: directory shared by all ranks. Reports are appended to `stall.txt` there, by only one of the ranks that
            detect a stall at once, and stacks are requested through it (`stacks.dumps_on_request`). None: a report
            without a stack.
    """

    def __init__(
        self,
        observe: Callable[[], list[Observed]],
        on_stall: Callable[[Observed, str], None],
        signalled: Callable[[], tuple[float, int] | None],
        *,
        timeout_s: float,
        startup_timeout_s: float,
        before_exit: Callable[[str], None] = lambda _: None,
        logs: Path | None = None,
    ) -> None:
        self._observe = observe
        self._on_stall = on_stall
        self._signalled = signalled
        self._timeout_s = timeout_s
        self._startup_timeout_s = startup_timeout_s
        self._before_exit = before_exit
        self._logs = logs
        self._size_before = _size(logs / STALL_FILE) if logs is not None else 0  # reports of earlier starts
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._monitor, name="lockstep-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop monitoring."""
        self._closed.set()
        self._thread.join()

    def _monitor(self) -> None:
        period = max(0.05, min(self._timeout_s / 10, 0.5))
        checked_at, resumed_at, saved_at = time.monotonic(), -math.inf, -math.inf
        longest_s = 0.0
        while not self._closed.wait(period):
            now = time.monotonic()
            if now - checked_at > period + _PAUSE_S:
                resumed_at = now  # time in which this process was stopped does not count
            checked_at = now
            ranks = [replace(o, seconds=min(o.seconds, now - resumed_at)) for o in self._observe()]
            if any(_saving(o) for o in ranks):
                saved_at = now  # has its own timeout, below
            signal = self._signalled()
            in_phase_s = max((o.seconds for o in ranks if o.runs and o.phase != WAIT), default=math.inf)
            if signal is None:
                longest_s = max(longest_s, in_phase_s if in_phase_s < math.inf else 0.0)
            else:
                # The training loop handles it between two updates, however long these are, if no rank is stuck.
                since = min(in_phase_s, now - max(signal[0], saved_at, resumed_at))
                if since > max(_SIGNAL_GRACE_S, _SLOWER * longest_s):
                    _exit(128 + signal[1])
            culprit = stuck(ranks, self._timeout_s, self._startup_timeout_s)
            if culprit is not None:
                try:
                    self._before_exit(report(culprit, ranks))
                    self._report(culprit, ranks)
                finally:
                    _exit(1)

    def _report(self, culprit: Observed, ranks: list[Observed]) -> None:
        if self._logs is None:
            self._on_stall(culprit, report(culprit, ranks))
            return
        claim = _claim(self._logs / STALL_FILE, self._size_before)
        if claim is not None:
            text = report(culprit, ranks) + _stack(self._logs, culprit)
            with contextlib.suppress(OSError):  # a full disk must not prevent the exit
                os.write(claim, (time.strftime("%Y-%m-%d %H:%M:%S ") + text + "\n").encode())
                os.fsync(claim)
            self._on_stall(culprit, text)
        else:
            time.sleep(PEER_DELAY_S)  # the launcher names the rank that it sees end first: the one that reported


def observed(rank: int, row: memoryview, *, alive: bool, tag: str, entered: int = 0) -> Observed:
    """Read one row of the board and the state of its process."""
    phase = row[PHASE] if 0 <= row[PHASE] < len(PHASES) else OTHER
    since, pid = row[SINCE_NS], row[PID]
    seconds = (time.monotonic_ns() - since) / 1e9 if since else 0.0
    state = process_state(pid) if alive else "ended"
    return Observed(rank, state, phase, seconds, row[UPDATES], tag, entered, pid, row[BEHIND])


def process_state(pid: int) -> State:
    """The state of a living process of this host; "running" if it cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            letter = file.read().rpartition(b") ")[2][:1]
    except OSError:
        return "running"
    return "stopped" if letter == b"T" else "traced" if letter == b"t" else "running"


def _saving(o: Observed) -> bool:
    """Whether a rank writes a checkpoint, or waits for ranks that do, perhaps on another host."""
    return o.runs and (o.phase == CHECKPOINT or (o.phase == WAIT and o.tag.startswith("checkpoint")))


def _stack(logs: Path, culprit: Observed) -> str:
    if not culprit.runs:
        return ""
    calls = stacks.request(logs, culprit.rank, culprit.pid)
    if not calls:
        return f"\n  its Python stack could not be read within {stacks.ANSWER_S:g} s"
    where = stacks.stack_file(logs, culprit.rank).name
    return "\n    ".join([f"\n  rank {culprit.rank}, innermost call first (all: logs/{where}):", *calls.splitlines()])


def _claim(path: Path, size: int) -> int | None:
    """The file to write a report to, if this process is the one to do so; else wait until that one has exited.

    A lock on the file decides, which the kernel releases when its process ends. A file larger than `size` has a report
    already.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError:
        return -1  # cannot be written: better two reports elsewhere than none
    until, first = time.monotonic() + 2 * stacks.ANSWER_S, True
    while time.monotonic() < until:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            first = False
            time.sleep(0.05)
        except OSError:  # a file system without locks
            return descriptor
        else:
            return descriptor if first and _size(path) == size else None
    return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _exit(code: int) -> None:
    """Exit at once: the main thread is stuck."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
