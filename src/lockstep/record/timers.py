"""Where the time goes: one running phase per rank, its clock, and a place where other processes can read it."""

import os
import time

PHASES = ("env", "act", "learn", "sync", "wait", "evaluate", "checkpoint", "other")
ENV, ACT, LEARN, SYNC, WAIT, EVALUATE, CHECKPOINT, OTHER = range(len(PHASES))

# Fields of a rank's row on the board, in 8-byte integers; the rest of the row belongs to `lockstep.segment`.
PHASE, SINCE_NS, UPDATES, PID, BEHIND = range(5)
ROW = 8


class Timers:
    """Seconds spent in each phase. Entering a phase costs about half a microsecond and no collective.

    The current phase and its start are written to `row`, which may lie in memory that the ranks of a host share: it is
    the heartbeat that `lockstep.watch` reads. Clocks are monotonic and, on one host, common to all processes.
    """

    def __init__(self) -> None:
        self.row = memoryview(bytearray(8 * ROW)).cast("q")
        self.row[PID] = os.getpid()
        self._totals_ns = [0] * len(PHASES)
        self._phase, self._since_ns = OTHER, time.monotonic_ns()

    def publish(self, row: memoryview) -> None:
        """From now on tell the phase in `row` (8-byte integers)."""
        row[UPDATES], row[PID], row[BEHIND] = self.row[UPDATES], os.getpid(), self.row[BEHIND]
        self.row = row
        self.enter(self._phase)

    def enter(self, phase: int) -> int:
        """Start `phase`; the previous one ends. Returns the previous one, to go back to it."""
        now, previous = time.monotonic_ns(), self._phase
        self._totals_ns[previous] += now - self._since_ns
        self._phase, self._since_ns = phase, now
        row = self.row
        row[PHASE], row[SINCE_NS] = phase, now
        return previous

    def resumed(self, updates: int) -> None:
        """Tell how many updates lie behind a run that goes on; its first one still ends a start-up."""
        self.row[UPDATES] = self.row[BEHIND] = updates
        self.enter(self._phase)

    def updated(self, updates: int) -> None:
        """Tell the number of updates done; the first one ends the start-up."""
        self.row[UPDATES] = updates
        self.enter(self._phase)

    def restart(self) -> None:
        """Forget what has been measured so far: the training loop starts here."""
        self.enter(self._phase)
        self._totals_ns = [0] * len(PHASES)

    def read(self) -> dict[str, float]:
        """Seconds in each phase since `restart`."""
        self.enter(self._phase)
        return {name: total / 1e9 for name, total in zip(PHASES, self._totals_ns, strict=True)}
