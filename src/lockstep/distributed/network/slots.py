"""Exchange between the CPU ranks of one host through shared memory: write, arrive, wait, read."""

import time
from typing import Any

import numpy as np

from lockstep.distributed.peers import absent, different_collectives
from lockstep.distributed.shared_memory import Segment, tag_text
from lockstep.distributed.signature import message_signature
from lockstep.distributed.timers import WAIT, Timers
from lockstep.distributed.watch import MARGIN_S
from lockstep.errors import PeerError, RunError

_MAX_POLL_S = 2.0  # a longer gap means that this process itself was stopped: it does not count as waiting


class Slots:
    """Rows of shared memory of this host's ranks, in two halves that collectives use in turn.

    Rank `first` has index 0 in the segment; the others follow. An exchange is given up `MARGIN_S` after `timeout_s`,
    since the report of the watch is more precise.
    """

    def __init__(self, segment: Segment, first: int, timeout_s: float, timers: Timers) -> None:
        self._segment = segment
        self._first = first
        self._timeout_s = timeout_s
        self._timers = timers
        self._half = 0  # bytes for one collective
        self._tables: dict[tuple[int, int, int, np.dtype[Any]], np.ndarray] = {}
        self._tag = ""
        self._margin_s = 0.0
        self._waited_s = 0.0
        self._polled_at = 0.0

    @property
    def index(self) -> int:
        """Index of this rank on its host."""
        return self._segment.index

    def table(self, rows: int, length: int, dtype: np.dtype[Any], tag: str) -> np.ndarray:
        """Memory [rows, length] for the next collective; not cleared.

        All ranks of the host need the same. Read it before the next collective: two halves are enough, since a rank
        writes to a half again only after every rank has arrived at the collective in between.
        """
        size = rows * length * dtype.itemsize
        if size > self._half or not self._half:
            self._grow(size, message_signature(length * dtype.itemsize, dtype), tag)
        turn = self._segment.turn_slots()
        key = (turn, rows, length, dtype)
        table = self._tables.get(key)
        if table is None:
            flat = np.frombuffer(self._segment.slots, dtype, rows * length, turn * self._half)
            table = self._tables[key] = flat.reshape(rows, length)
        return table

    def wait_for_all(self, tag: str, signature: int) -> None:
        """Wait until every rank of the host has written its row and arrived with the same `message_signature`.

        A negative one: until every rank has replaced its slots by larger ones, for a message of that signature.
        """
        self._segment.arrive(tag, signature)
        self.wait(tag, signature)

    def wait(self, tag: str, signature: int) -> None:
        """The second part of `wait_for_all`, once this rank has arrived."""
        self._start_waiting(tag, MARGIN_S)
        previous = self._timers.enter(WAIT)
        self._segment.wait(self.check)
        self._timers.enter(previous)
        others = self._segment.ranks_elsewhere()
        if others:
            rank = self._first + self._segment.index
            reported = [(self._first + index, other_tag, abs(other)) for index, other_tag, other in others]
            mine = tag_text(tag).decode().rstrip()  # as on the board, where it may be cut
            raise RunError(different_collectives(rank, mine, abs(signature), reported))

    def publish_from_hosts(self) -> None:
        """Publish, as index 0, that the rows of other hosts are in the table."""
        self._segment.publish_from_hosts()

    def wait_for_first(self, tag: str) -> None:
        """Wait until index 0 has received the rows of other hosts."""
        self._start_waiting(tag, 2 * MARGIN_S)  # index 0 gives up earlier, with a better message
        previous = self._timers.enter(WAIT)
        self._segment.wait_for_first(self.check)
        self._timers.enter(previous)

    def announce_failure(self, reason: str) -> None:
        """Announce to the others of this host, as index 0, why this rank exits."""
        self._segment.announce_failure(reason)

    def check(self, index: int) -> None:
        """Raise if a rank of this host has ended, failed or timed out; `index` is the one waited for."""
        failure = self._segment.failure()
        if failure:
            raise PeerError(failure)
        rank = self._first + self._segment.index
        dead = [self._first + other for other in range(self._segment.count) if not self._segment.alive(other)]
        if dead:
            raise PeerError(f"rank {dead[0]} has ended while rank {rank} waited in {self._tag}", dead[0])
        now = time.monotonic()
        self._waited_s += min(now - self._polled_at, _MAX_POLL_S)
        self._polled_at = now
        if index != self._segment.index and self._waited_s > self._timeout_s + self._margin_s:
            raise absent(self._segment, rank, index, self._tag, self._timeout_s)

    def _start_waiting(self, tag: str, margin_s: float) -> None:
        self._tag = tag
        self._margin_s = margin_s
        self._waited_s = 0.0
        self._polled_at = time.monotonic()

    def _grow(self, size: int, signature: int, tag: str) -> None:
        """Make slots for at least `size` bytes; all ranks do so together, for a message of the same `signature`."""
        self._tables.clear()
        self._half = 1 << max(12, (size - 1).bit_length())
        growing = -signature  # negative: a rank that does not grow now is in another collective
        if self._segment.index == 0:
            self._segment.create_slots(2 * self._half)
        self.wait_for_all(tag, growing)
        if self._segment.index != 0:
            self._attach(2 * self._half, tag)
        self.wait_for_all(tag, growing)
        self._segment.slots_attached()

    def _attach(self, size: int, tag: str) -> None:
        """Open the slots of the first rank, which may have ended since it arrived."""
        try:
            self._segment.attach_slots(size)
        except OSError as error:
            self.check(0)
            rank = self._first + self._segment.index
            raise PeerError(f"rank {self._first} has ended while rank {rank} waited in {tag}", self._first) from error
