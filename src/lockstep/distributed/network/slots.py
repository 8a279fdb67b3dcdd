"""Exchange between the CPU ranks of one host through shared memory: write, arrive, wait, read."""

import time
from typing import Any

import numpy as np

from lockstep.distributed.peers import absent, different_collectives
from lockstep.distributed.shared_memory import Segment, tag_text
from lockstep.distributed.timers import WAIT, Timers
from lockstep.distributed.watch import MARGIN_S
from lockstep.errors import PeerError, RunError

LONGEST_LOOK_S = 2.0
"""Time in which this process itself was stopped (a suspended job) says nothing about others: a look counts no more."""


class Slots:
    """Rows of memory that all ranks of this host see, twice, for collectives in turn.

    Args:
        segment: the host's shared memory.
        first: the rank that has index 0 in it; the others follow.
        timeout_s: bound on one exchange; given up `MARGIN_S` later, since the watch knows more about who is stuck.
        timers: told while this rank waits.
    """

    def __init__(self, segment: Segment, first: int, timeout_s: float, timers: Timers) -> None:
        self._segment, self._first = segment, first
        self._timeout_s, self._timers = timeout_s, timers
        self._half = 0  # bytes for one collective
        self._tables: dict[tuple[int, int, int, np.dtype[Any]], np.ndarray] = {}
        self._tag = ""
        self._patience_s, self._waited_s, self._looked_at = 0.0, 0.0, 0.0

    @property
    def index(self) -> int:
        """Which of the ranks of this host this one is."""
        return self._segment.index

    def table(self, rows: int, length: int, kind: np.dtype[Any], tag: str) -> np.ndarray:
        """Memory [rows, length] for the next collective, with what an earlier one left there.

        All ranks of the host ask for the same. Read it before the next collective: two halves, used in turn, are
        enough, since a rank writes to a half again only after every rank has arrived at the collective between.
        """
        size = rows * length * kind.itemsize
        if size > self._half:
            self._grow(size, length * kind.itemsize, tag)
        turn = self._segment.turn_slots()
        key = (turn, rows, length, kind)
        table = self._tables.get(key)
        if table is None:
            flat = np.frombuffer(self._segment.slots, kind, rows * length, turn * self._half)
            table = self._tables[key] = flat.reshape(rows, length)
        return table

    def meet(self, tag: str, size: int) -> None:
        """Wait until every rank of the host has written its `size` bytes (negative: has made room for them)."""
        self._segment.arrive(tag, size)
        self.wait(tag, size)

    def wait(self, tag: str, size: int) -> None:
        """The rest of `meet`, once this rank has arrived."""
        self._start_to_wait(tag, MARGIN_S)
        previous = self._timers.enter(WAIT)
        self._segment.wait(self.look)
        self._timers.enter(previous)
        others = self._segment.others()
        if others:
            rank = self._first + self._segment.index
            reported = [(self._first + index, theirs, abs(bytes_)) for index, theirs, bytes_ in others]
            mine = tag_text(tag).decode().rstrip()  # as the board has it, which may be shorter
            raise RunError(different_collectives(rank, mine, abs(size), reported))

    def pass_on(self) -> None:
        """Say, as index 0, that what came from other hosts is in the table."""
        self._segment.pass_on()

    def wait_for_first(self, tag: str) -> None:
        """Wait until index 0 has heard of the other hosts."""
        self._start_to_wait(tag, 2 * MARGIN_S)  # index 0 gives up before, and knows why
        previous = self._timers.enter(WAIT)
        self._segment.wait_for_first(self.look)
        self._timers.enter(previous)

    def fail(self, words: str) -> None:
        """Tell the others of this host, as index 0, why this rank leaves."""
        self._segment.fail(words)

    def look(self, index: int) -> None:
        """Raise if the ranks of this host cannot go on together; `index` is the one waited for."""
        failure = self._segment.failure()
        if failure:
            raise PeerError(failure)
        rank = self._first + self._segment.index
        dead = [self._first + other for other in range(self._segment.count) if not self._segment.alive(other)]
        if dead:
            raise PeerError(f"rank {dead[0]} has ended while rank {rank} waited in {self._tag}", dead[0])
        now = time.monotonic()
        self._waited_s += min(now - self._looked_at, LONGEST_LOOK_S)
        self._looked_at = now
        if index != self._segment.index and self._waited_s > self._timeout_s + self._patience_s:
            raise absent(self._segment, rank, index, self._tag, self._timeout_s)

    def _start_to_wait(self, tag: str, patience_s: float) -> None:
        self._tag, self._patience_s = tag, patience_s
        self._waited_s, self._looked_at = 0.0, time.monotonic()

    def _grow(self, size: int, row: int, tag: str) -> None:
        """Make slots for at least `size` bytes, `row` of each rank. All ranks come here together, with equal sizes."""
        self._tables.clear()
        self._half = 1 << max(12, (size - 1).bit_length())
        growing = -row  # whoever meets a rank that grows without growing itself is in another collective
        if self._segment.index == 0:
            self._segment.create_slots(2 * self._half)
        self.meet(tag, growing)
        if self._segment.index != 0:
            self._segment.attach_slots(2 * self._half)
        self.meet(tag, growing)
        self._segment.slots_attached()
