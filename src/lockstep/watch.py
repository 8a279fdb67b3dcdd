"""Nothing hangs in silence: a thread in every rank looks at what all ranks of the host are doing.

A rank that stays in one phase beyond its bound, and is not merely waiting for others, is stuck. The first watcher to
see it writes one report that names the rank, the phase, for how long, and what the others wait in; then every rank
leaves.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from lockstep.record.timers import OTHER, PHASE, PHASES, SINCE_NS, UPDATES, WAIT

_DOING = {"env": "env.step", "learn": "the update", "other": "its own code"}
_SIGNAL_GRACE_S = 8.0


@dataclass(frozen=True, slots=True)
class Observed:
    """What one rank of this host is doing."""

    rank: int
    alive: bool
    phase: int
    seconds: float
    """How long it has been in the phase."""
    updates: int
    tag: str
    """The collective it arrived at last."""

    def __str__(self) -> str:
        name = PHASES[self.phase]
        doing = self.tag or "a collective" if self.phase == WAIT else _DOING.get(name, name)
        return f"{doing}, update {self.updates + 1}"


def stuck(ranks: list[Observed], timeout_s: float, startup_timeout_s: float) -> Observed | None:
    """The rank that keeps the others waiting: longest in a phase of its own beyond the bound."""

    def bound(observed: Observed) -> float:
        return timeout_s if observed.updates else startup_timeout_s

    late = [o for o in ranks if o.alive and o.phase != WAIT and o.seconds > bound(o)]
    return max(late, key=lambda o: o.seconds, default=None)


def report(culprit: Observed, ranks: list[Observed]) -> str:
    """One line a person can act on: who, in what, for how long, and what the others wait in."""
    text = f"rank {culprit.rank} has been in {culprit} for {culprit.seconds:.0f} s"
    groups: dict[str, list[int]] = {}
    for other in ranks:
        if other.rank != culprit.rank:
            what = f"wait in {other}" if other.phase == WAIT else f"are in {other}"
            groups.setdefault(what if other.alive else "have ended", []).append(other.rank)
    for what, members in groups.items():
        one = len(members) == 1
        singular = what.replace("wait", "waits", 1).replace("are in", "is in", 1).replace("have", "has", 1)
        text += f"; rank{'' if one else 's'} {_ranges(members)} {singular if one else what}"
    return text


class Watch:
    """Looks at all ranks of this host a few times a second, until `close`.

    Args:
        observe: what the ranks of this host do now.
        on_stall: called in the watching thread with the stuck rank and the report; then the process leaves with 1.
        signalled: when a signal asked this process to stop (monotonic seconds) and which one; None while none did.
        timeout_s: bound on any phase after the first update.
        startup_timeout_s: bound before it.
    """

    def __init__(
        self,
        observe: Callable[[], list[Observed]],
        on_stall: Callable[[Observed, str], None],
        signalled: Callable[[], tuple[float, int] | None],
        *,
        timeout_s: float,
        startup_timeout_s: float,
    ) -> None:
        self._observe, self._on_stall, self._signalled = observe, on_stall, signalled
        self._timeout_s, self._startup_timeout_s = timeout_s, startup_timeout_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="lockstep-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._closed.set()
        self._thread.join()

    def _look(self) -> None:
        period = max(0.05, min(self._timeout_s / 10, 0.5))
        while not self._closed.wait(period):
            signal = self._signalled()
            if signal is not None and time.monotonic() - signal[0] > _SIGNAL_GRACE_S:
                _leave(128 + signal[1])  # the loop never came round to see the flag
            ranks = self._observe()
            culprit = stuck(ranks, self._timeout_s, self._startup_timeout_s)
            if culprit is not None:
                try:
                    self._on_stall(culprit, report(culprit, ranks))
                finally:
                    _leave(1)


def observed(rank: int, row: memoryview, *, alive: bool, tag: str) -> Observed:
    """Read one row of the board."""
    phase = row[PHASE] if 0 <= row[PHASE] < len(PHASES) else OTHER
    since = row[SINCE_NS]
    seconds = (time.monotonic_ns() - since) / 1e9 if since else 0.0
    return Observed(rank, alive, phase, seconds, row[UPDATES], tag)


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
