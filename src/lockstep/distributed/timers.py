"""Time per phase: each rank is in one phase at a time, which other processes can read."""

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol

PHASES = ("env", "act", "learn", "sync", "wait", "evaluate", "checkpoint", "other")
ENV, ACT, LEARN, SYNC, WAIT, EVALUATE, CHECKPOINT, OTHER = range(len(PHASES))

# Fields of a rank's row on the board, in 8-byte integers; the rest of the row belongs to
# `lockstep.distributed.shared_memory`.
PHASE, SINCE_NS, UPDATES, PID, BEHIND = range(5)
ROW = 8


class Event(Protocol):
    """A point in the work that is queued on a device, as `torch.cuda.Event`."""

    def record(self) -> None:
        """Queue the point."""
        ...

    def query(self) -> bool:
        """Whether the device has reached the point; does not wait."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds until the device reached another point; both must have been reached."""
        ...


class Timers:
    """Seconds spent in each phase. Entering a phase costs about half a microsecond and no collective.

    On a GPU (`use_events`) a phase lasts from when the GPU has done the work queued before it until it has done the
    phase's own work, so that the time of kernels counts for the phase that queued them. The host does not wait for the
    GPU: what it has not reached is counted later. Entering a phase then costs some microseconds.

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
        self._make_event: Callable[[], Event] | None = None
        self._begins = deque[tuple[int, Event]]()
        """The phases that are not counted yet, and their beginnings on the device."""
        self._unused: list[Event] = []

    def use_events(self, make_event: Callable[[], Event]) -> None:
        """From now on, measure on a device: with events of the stream that is current when a phase is entered."""
        self.enter(self.row[PHASE])
        self._make_event = make_event
        self._record(self.row[PHASE])

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
        if self._make_event is None:
            self.totals_ns[previous] += now - row[SINCE_NS]
        elif phase != previous:
            self._record(phase)
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
        self._count()

    def restart(self) -> None:
        """Reset the totals: the training loop starts here."""
        self.enter(self.row[PHASE])
        self.totals_ns[:] = memoryview(bytes(8 * len(PHASES))).cast("q")
        if self._make_event is not None:
            self._begins.clear()
            self._record(self.row[PHASE])

    def read(self) -> dict[str, float]:
        """Seconds in each phase since `restart`; on a device up to the last phase that it has finished."""
        self.enter(self.row[PHASE])
        if self._make_event is not None:
            self._record(self.row[PHASE])
            self._count()
        return {name: total / 1e9 for name, total in zip(PHASES, self.totals_ns, strict=True)}

    def _record(self, phase: int) -> None:
        """Queue the beginning of a phase on the device."""
        assert self._make_event is not None
        event = self._unused.pop() if self._unused else self._make_event()
        event.record()
        self._begins.append((phase, event))

    def _count(self) -> None:
        """Count the phases that the device has finished."""
        while len(self._begins) > 1 and self._begins[1][1].query():
            phase, begin = self._begins.popleft()
            self.totals_ns[phase] += int(begin.elapsed_time(self._begins[0][1]) * 1e6)
            self._unused.append(begin)


class RecordedTimers(Timers):
    """Timers that also keep each period of a phase, between `start_recording` and `stop_recording`.

    Changes that C code makes to the record (`lockstep.jax.collectives.native`) count to the phase around them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._periods: list[tuple[int, int, int]] | None = None
        self._last_ns = 0

    def start_recording(self) -> None:
        """Keep the periods from now on."""
        self.enter(self.row[PHASE])
        self._periods, self._last_ns = [], self.row[SINCE_NS]

    def stop_recording(self) -> list[tuple[int, int, int]]:
        """The phase, start and end of each period, in nanoseconds of the monotonic clock."""
        self.enter(self.row[PHASE])
        periods, self._periods = self._periods or [], None
        return periods

    def enter(self, phase: int) -> int:
        """Start `phase` and return the previous one."""
        previous = super().enter(phase)
        if self._periods is not None:
            now = self.row[SINCE_NS]
            if self._periods and self._periods[-1][0] == previous:  # a heartbeat within the phase
                self._periods[-1] = (previous, self._periods[-1][1], now)
            else:
                self._periods.append((previous, self._last_ns, now))
            self._last_ns = now
        return previous
