"""Time per phase: each rank is in one phase at a time, which other processes can read."""

import contextlib
import os
import time
from collections.abc import Generator

PHASES = ("env", "act", "learn", "sync", "wait", "evaluate", "checkpoint", "other")
ENV, ACT, LEARN, SYNC, WAIT, EVALUATE, CHECKPOINT, OTHER = range(len(PHASES))

# Fields of a rank's row on the board, in 8-byte integers; the rest of the row belongs to
# `lockstep.distributed.shared_memory`.
PHASE, SINCE_NS, UPDATES, PID, BEHIND = range(5)
ROW = 8


class Timers:
    """Seconds spent in each phase. Entering a phase costs about half a microsecond and no collective.

    The current phase and its start are written to `row`, which may be in shared memory of the host's ranks: it is the
    heartbeat that `lockstep.distributed.watch` reads. Clocks are monotonic and, on one host, common to all processes.
    C code updates the same memory (`lockstep.jax.collectives.native`).

    Attributes:
        row: the record of this rank.
        totals_ns: nanoseconds in each phase, without the current one.
    """

    def __init__(self) -> None:
        self.row = memoryview(bytearray(8 * ROW)).cast("q")
        self.row[PID] = os.getpid()
        self.totals_ns = memoryview(bytearray(8 * len(PHASES))).cast("q")
        self.row[PHASE], self.row[SINCE_NS] = OTHER, time.monotonic_ns()

    def publish(self, row: memoryview) -> None:
        """From now on, keep the record in `row` (8-byte integers)."""
        before = self.row
        row[UPDATES], row[PID], row[BEHIND] = before[UPDATES], os.getpid(), before[BEHIND]
        row[PHASE], row[SINCE_NS] = before[PHASE], before[SINCE_NS]
        self.row = row
        self.enter(row[PHASE])

    def enter(self, phase: int) -> int:
        """Start `phase` and return the previous one."""
        now, row = time.monotonic_ns(), self.row
        previous = row[PHASE]
        self.totals_ns[previous] += now - row[SINCE_NS]
        row[PHASE], row[SINCE_NS] = phase, now
        return previous

    @contextlib.contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Count the time inside the block as phase `name`, one of `PHASES`; after an error the phase stays."""
        previous = self.enter(PHASES.index(name))
        yield
        self.enter(previous)

    def resumed(self, updates: int) -> None:
        """Record the updates of earlier starts; the first update of this one still ends its start-up."""
        self.row[UPDATES] = self.row[BEHIND] = updates
        self.enter(self.row[PHASE])

    def updated(self, updates: int) -> None:
        """Record the number of updates done; the first one ends the start-up."""
        self.row[UPDATES] = updates
        self.enter(self.row[PHASE])

    def restart(self) -> None:
        """Reset the totals: the training loop starts here."""
        self.enter(self.row[PHASE])
        self.totals_ns[:] = memoryview(bytes(8 * len(PHASES))).cast("q")

    def read(self) -> dict[str, float]:
        """Seconds in each phase since `restart`."""
        self.enter(self.row[PHASE])
        return {name: total / 1e9 for name, total in zip(PHASES, self.totals_ns, strict=True)}
