"""Nothing hangs in silence: a thread in every rank looks at what all ranks of the host are doing.

A rank that stays in one phase beyond its bound, and is not merely waiting for others, is stuck; so is one whose process
is stopped, whatever it was doing. The first watcher to see it writes one report that names the rank, the phase, for how
long, and what the others wait in, with the stack of the stuck rank; then every rank leaves.
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
from lockstep.distributed.timers import BEHIND, CHECKPOINT, OTHER, PHASE, PHASES, PID, SINCE_NS, SYNC, UPDATES, WAIT

MARGIN_S = 2.0
"""How much later than the watch a collective gives up by itself: the watch's report knows who is stuck, where and why,
and needs up to half a second to see it and a second for the stack."""

STALL_FILE = "stall.txt"
"""The reports of a run, in its `logs/`."""

_DOING = {"env": "env.step", "learn": "the update", "other": "its own code"}
_SIGNAL_GRACE_S = 8.0
_AWAY_S = 2.0  # a watcher that was kept from looking for longer was stopped, and perhaps the whole job with it

State = Literal["running", "stopped", "traced", "ended"]


@dataclass(frozen=True, slots=True)
class Observed:
    """What one rank of this host is doing."""

    rank: int
    state: State
    """Of its process; "stopped" by a signal (SIGSTOP, Ctrl-Z), "traced" where a debugger holds it."""
    phase: int
    seconds: float
    """How long it has been in the phase."""
    updates: int
    tag: str = ""
    """The collective it entered last."""
    entered: int = 0
    """How many collectives it has entered: who has entered fewer keeps the others waiting."""
    pid: int = 0
    behind: int = 0
    """Updates that an earlier start of the run did: with the first one of its own, a process has started up."""

    @property
    def runs(self) -> bool:
        """Whether the process gets on by itself."""
        return self.state == "running"

    @property
    def doing(self) -> str:
        """The phase in words: of a collective, which."""
        name = PHASES[self.phase]
        return self.tag or "a collective" if self.phase in (SYNC, WAIT) else _DOING.get(name, name)

    def __str__(self) -> str:
        return f"{self.doing}, update {self.updates + 1}"


def stuck(ranks: list[Observed], timeout_s: float, startup_timeout_s: float) -> Observed | None:
    """The rank that keeps the others waiting, once one is beyond its bound; who only waits is never meant.

    A stopped process comes first, then who has entered the fewest collectives (on GPUs a rank can be ahead of the
    others and wait for its device), then who has been in its phase for longest.
    """

    def late(o: Observed) -> bool:
        beyond = o.seconds > (timeout_s if o.updates > o.behind else startup_timeout_s)
        return beyond and (o.state in ("stopped", "traced") or (o.runs and o.phase != WAIT))

    if not any(late(o) for o in ranks):
        return None
    suspects = [o for o in ranks if late(o) or (o.runs and o.phase != WAIT)]
    return min(suspects, key=lambda o: (o.runs, o.entered, not late(o), -o.seconds))


def report(culprit: Observed, ranks: list[Observed]) -> str:
    """One line a person can act on: who, in what, for how long, and what the others wait in."""
    who, how_long = f"rank {culprit.rank}", f"for {culprit.seconds:.0f} s"
    if culprit.state == "stopped":
        text = f"{who} is stopped (SIGSTOP) in {culprit}, {how_long}; continue it with `kill -CONT {culprit.pid}`"
    elif culprit.state == "traced":
        text = f"{who} is held by a debugger in {culprit}, {how_long}; let it go on there (process {culprit.pid})"
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
        text += f"; rank{'' if one else 's'} {_ranges(members)} {singular if one else what}"
    return text


class Watch:
    """Looks at all ranks of this host a few times a second, until `close`.

    Args:
        observe: what the ranks of this host do now.
        on_stall: called in the watching thread with the stuck rank and the report, whose first line says who and
            where, and whose others are the stack; then the process leaves with 1.
        signalled: when a signal asked this process to stop (monotonic seconds) and which one; None while none did.
        timeout_s: bound on any phase after the first update.
        startup_timeout_s: bound before it.
        leaving: called with the report's first line by every watcher that sees the stall, before it leaves.
        logs: directory that all ranks share: reports are added to `stall.txt` there, stacks are asked for through it
            (`stacks.answering`), and of the watchers that see a stall at once one reports. None: a report without.
    """

    def __init__(
        self,
        observe: Callable[[], list[Observed]],
        on_stall: Callable[[Observed, str], None],
        signalled: Callable[[], tuple[float, int] | None],
        *,
        timeout_s: float,
        startup_timeout_s: float,
        leaving: Callable[[str], None] = lambda _: None,
        logs: Path | None = None,
    ) -> None:
        self._leaving = leaving
        self._observe, self._on_stall, self._signalled = observe, on_stall, signalled
        self._timeout_s, self._startup_timeout_s, self._logs = timeout_s, startup_timeout_s, logs
        self._reported = _size(logs / STALL_FILE) if logs is not None else 0  # in earlier starts of the run
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="lockstep-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._closed.set()
        self._thread.join()

    def _look(self) -> None:
        period = max(0.05, min(self._timeout_s / 10, 0.5))
        looked_at, back_at, saved_at = time.monotonic(), -math.inf, -math.inf
        while not self._closed.wait(period):
            now = time.monotonic()
            if now - looked_at > period + _AWAY_S:
                back_at = now  # what happened meanwhile is nobody's fault
            looked_at = now
            ranks = [replace(o, seconds=min(o.seconds, now - back_at)) for o in self._observe()]
            if any(_saving(o) for o in ranks):
                saved_at = now  # bounded as a phase, below
            signal = self._signalled()
            if signal is not None and now - max(signal[0], saved_at, back_at) > _SIGNAL_GRACE_S:
                _leave(128 + signal[1])  # the loop never came round to see the flag
            culprit = stuck(ranks, self._timeout_s, self._startup_timeout_s)
            if culprit is not None:
                try:
                    self._leaving(report(culprit, ranks))
                    self._tell(culprit, ranks)
                finally:
                    _leave(1)

    def _tell(self, culprit: Observed, ranks: list[Observed]) -> None:
        if self._logs is None:
            self._on_stall(culprit, report(culprit, ranks))
            return
        claim = _claim(self._logs / STALL_FILE, self._reported)
        if claim is not None:
            text = report(culprit, ranks) + _stack(self._logs, culprit)
            with contextlib.suppress(OSError):  # a full disk: the others are told all the same
                os.write(claim, (time.strftime("%Y-%m-%d %H:%M:%S ") + text + "\n").encode())
                os.fsync(claim)
            self._on_stall(culprit, text)


def observed(rank: int, row: memoryview, *, alive: bool, tag: str, entered: int = 0) -> Observed:
    """Read one row of the board, and the state of its process."""
    phase = row[PHASE] if 0 <= row[PHASE] < len(PHASES) else OTHER
    since, pid = row[SINCE_NS], row[PID]
    seconds = (time.monotonic_ns() - since) / 1e9 if since else 0.0
    state = process_state(pid) if alive else "ended"
    return Observed(rank, state, phase, seconds, row[UPDATES], tag, entered, pid, row[BEHIND])


def process_state(pid: int) -> State:
    """Whether a living process of this host gets on; "running" where that cannot be seen."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            letter = file.read().rpartition(b") ")[2][:1]
    except OSError:
        return "running"
    return "stopped" if letter == b"T" else "traced" if letter == b"t" else "running"


def _saving(o: Observed) -> bool:
    """Whether a rank writes a checkpoint, or waits for others of the run, perhaps on another host, that do."""
    return o.runs and (o.phase == CHECKPOINT or (o.phase == WAIT and o.tag.startswith("checkpoint")))


def _stack(logs: Path, culprit: Observed) -> str:
    """Lines to add to a report: the calls in which a rank is stuck."""
    if not culprit.runs:
        return ""
    calls = stacks.ask(logs, culprit.rank, culprit.pid)
    if not calls:
        return f"\n  its Python stack could not be read within {stacks.ANSWER_S:g} s"
    where = stacks.stack_file(logs, culprit.rank).name
    return "\n    ".join(
        [f"\n  rank {culprit.rank}, innermost call first (all threads: logs/{where}):", *calls.splitlines()]
    )


def _claim(path: Path, size: int) -> int | None:
    """The file to write a report to, if this process is to; otherwise wait until the one that is has left.

    A lock on the file, held until this process leaves, decides: nothing of it stays, whoever is killed and when.
    A file larger than `size` holds a report already.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError:
        return -1  # cannot be written: told twice is better than not at all
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


def _leave(code: int) -> None:
    """End this process now: its main thread is stuck and cannot be asked."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] as "0-2, 5"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
