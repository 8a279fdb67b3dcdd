"""Shared memory of the ranks of one host: a board with the state of each rank, and slots to exchange numbers.

The memory is anonymous (memfd): other ranks open it through /proc while its creator lives, so nothing is left in
/dev/shm, whichever process is killed. Each rank keeps a file lock on its own byte while it lives: a lock that can be
taken belongs to a dead process, also where process ids are not visible.

Other processors see plain stores in program order only on x86 (total store order). Elsewhere `ordered()` is false:
the board still works, and numbers are exchanged through the network backend.
"""

import contextlib
import ctypes
import errno
import fcntl
import functools
import mmap
import os
import platform
import time
import zlib
from collections.abc import Callable

from lockstep.distributed.timers import ROW

_LINE = 128  # 8-byte integers of a rank's record: whole cache lines, so that no two ranks write to the same one
_SEQUENCE = ROW  # how many collectives this rank has arrived at
_TAGS = ROW + 8  # checksum of the tag and message signature: two such pairs, used in turn
_TEXT = 8 * (ROW + 16)  # two tag texts in turn, as bytes
_TEXT_SIZE = 64
_ENTERED = ROW + 1  # how many collectives this rank has entered, whichever way they go
_DOING = _TEXT + 2 * _TEXT_SIZE  # the tag of the last one entered, as bytes
_PUBLISHED = ROW + 2  # of the first rank: for how many collectives the other hosts' rows are there
_FAILED = ROW + 3  # of the first rank: bytes of the reason why it failed; 0 if it has not
_TURN = ROW + 4  # which half of the slots this rank used last
_SLOTS, _SLOTS_SIZE = ROW + 5, ROW + 6  # address and bytes of the slots in this process; for its C code
_SLOTS_PATH = _DOING + _TEXT_SIZE  # of the first rank: the path at which others open the slots, as bytes
_REASON = _SLOTS_PATH + _TEXT_SIZE
LAYOUT = {
    "LINE": _LINE,
    "SEQUENCE": _SEQUENCE,
    "TAGS": _TAGS,
    "TEXT": _TEXT,
    "TEXT_SIZE": _TEXT_SIZE,
    "ENTERED": _ENTERED,
    "DOING": _DOING,
    "TURN": _TURN,
    "SLOTS": _SLOTS,
    "SLOTS_SIZE": _SLOTS_SIZE,
}
"""For C code that exchanges as this file does: `TEXT` and `DOING` are offsets in bytes, the others in words."""
_SPIN_NS = 200_000
_SLEEP_S = 50e-6
_CHECK_NS = 100_000_000  # how often a waiting rank checks the others


def supported() -> bool:
    """Whether this machine has anonymous shared memory, which the board needs."""
    return hasattr(os, "memfd_create")


def ordered() -> bool:
    """Whether this machine orders stores as `arrive` and `wait` need."""
    return platform.machine() in ("x86_64", "AMD64")


class Segment:
    """One host's shared memory, seen from its rank `index` of `count`.

    Attributes:
        board: address of all ranks' records in this process.
        spin_ns: for how long `wait` polls without sleeping.
    """

    def __init__(self, index: int, count: int, descriptor: int) -> None:
        self.index = index
        self.count = count
        self._descriptor = descriptor
        self._memory = mmap.mmap(descriptor, count * _LINE * 8)
        self._bytes = memoryview(self._memory)
        self._words = self._bytes.cast("q")
        self.board = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.spin_ns = 0
        self._slots: mmap.mmap | None = None
        self._slots_descriptor = -1
        self._own = index * _LINE
        fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, index)
        _short_sleeps()

    @classmethod
    def create(cls, index: int, count: int) -> "Segment":
        """New memory, which the other ranks of the host attach by its `address`."""
        descriptor = os.memfd_create("lockstep", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, count * _LINE * 8)
        return cls(index, count, descriptor)

    @classmethod
    def attach(cls, address: str, index: int, count: int) -> "Segment":
        """The memory that another rank created. Raises OSError if this process may not open it, or it is not that."""
        descriptor = os.open(address, os.O_RDWR | os.O_CLOEXEC)
        if os.fstat(descriptor).st_size != count * _LINE * 8:
            os.close(descriptor)
            raise OSError(errno.ESTALE, "this is another file", address)
        return cls(index, count, descriptor)

    def spin(self) -> None:
        """Poll for a while before sleeping; for hosts where every rank has its own core."""
        self.spin_ns = _SPIN_NS

    @property
    def address(self) -> str:
        """The path at which other processes of this host open the memory, while this process lives."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def row(self, index: int) -> memoryview:
        """The part of rank `index`'s record that its `Timers` write."""
        return self._words[index * _LINE : index * _LINE + ROW]

    def create_slots(self, size: int) -> None:
        """Replace the slots by new ones of `size` bytes, as index 0; others can attach until `slots_attached`."""
        self._slots_descriptor = os.memfd_create("lockstep-slots", os.MFD_CLOEXEC)
        os.ftruncate(self._slots_descriptor, size)
        self._open_slots(self._slots_descriptor, size)
        self._bytes[_SLOTS_PATH : _SLOTS_PATH + _TEXT_SIZE] = tag_text(
            f"/proc/{os.getpid()}/fd/{self._slots_descriptor}"
        )

    def slots_attached(self) -> None:
        """Close the descriptor of the slots, once all ranks have attached them."""
        if self._slots_descriptor >= 0:
            os.close(self._slots_descriptor)
            self._slots_descriptor = -1

    def attach_slots(self, size: int) -> None:
        """Open the slots that index 0 created."""
        address = self._bytes[_SLOTS_PATH : _SLOTS_PATH + _TEXT_SIZE].tobytes().decode().strip()
        descriptor = os.open(address, os.O_RDWR | os.O_CLOEXEC)
        self._open_slots(descriptor, size)
        os.close(descriptor)

    def _open_slots(self, descriptor: int, size: int) -> None:
        self._slots = mmap.mmap(descriptor, size)
        self._words[self._own + _SLOTS] = ctypes.addressof(ctypes.c_char.from_buffer(self._slots))
        self._words[self._own + _SLOTS_SIZE] = size

    @property
    def slots(self) -> mmap.mmap:
        """The memory for exchange."""
        assert self._slots is not None
        return self._slots

    def turn(self) -> int:
        """Which of two places for a tag the next arrival uses: no rank is ahead of another by two."""
        return (self._sequence + 1) & 1

    @property
    def _sequence(self) -> int:
        return self._words[self._own + _SEQUENCE]

    def turn_slots(self) -> int:
        """Which of the two halves of the slots the next collective uses: 1, 0, 1, ..."""
        half = self._words[self._own + _TURN] = 1 - self._words[self._own + _TURN]
        return half

    def enter(self, tag: str) -> None:
        """Write to the board which collective this rank enters, whatever its transport."""
        base = self._own
        start = base * 8 + _DOING
        self._bytes[start : start + _TEXT_SIZE] = tag_text(tag)
        self._words[base + _ENTERED] += 1

    def entered(self, index: int) -> int:
        """How many collectives rank `index` has entered."""
        return self._words[index * _LINE + _ENTERED]

    def arrive(self, tag: str, signature: int) -> None:
        """Publish that this rank has written its part of the next collective, a message of this signature."""
        turn, sequence, base = self.turn(), self._sequence + 1, self._own
        text = tag_text(tag)
        start = base * 8 + _TEXT + turn * _TEXT_SIZE
        self._bytes[start : start + _TEXT_SIZE] = text
        self._words[base + _TAGS + 2 * turn] = zlib.crc32(text)
        self._words[base + _TAGS + 2 * turn + 1] = signature
        self._words[base + _SEQUENCE] = sequence  # last: a rank that reads this number also reads all of the above

    def wait(self, on_wait: Callable[[int], None]) -> None:
        """Wait until every rank has arrived; `on_wait(index)` is called ten times a second, and may raise."""
        for index in range(self.count):
            self._wait_for(index, index * _LINE + _SEQUENCE, on_wait)

    def publish_from_hosts(self) -> None:
        """Publish, as index 0, that the other hosts' part of this collective is written."""
        self._words[_PUBLISHED] = self._sequence

    def wait_for_first(self, on_wait: Callable[[int], None]) -> None:
        """Wait for `publish_from_hosts` of index 0; `on_wait` as in `wait`."""
        self._wait_for(0, _PUBLISHED, on_wait)

    def _wait_for(self, index: int, place: int, on_wait: Callable[[int], None]) -> None:
        words, sequence = self._words, self._sequence
        if words[place] >= sequence:
            return
        start = time.monotonic_ns()
        spin_until, check_at = start + self.spin_ns, start + _CHECK_NS
        while words[place] < sequence:
            now = time.monotonic_ns()
            if now < spin_until:
                continue
            time.sleep(_SLEEP_S)
            if now > check_at:
                check_at = now + _CHECK_NS
                try:
                    on_wait(index)
                except Exception:  # no failure if the last rank has just arrived, and others have exited since
                    if words[place] < sequence:
                        raise

    def announce_failure(self, reason: str) -> None:
        """Write why this rank fails, as index 0: otherwise the others only see that its process has ended."""
        text = reason.encode()[: 8 * _LINE - _REASON]
        self._bytes[_REASON : _REASON + len(text)] = text
        self._words[_FAILED] = len(text)  # last, as in `arrive`

    def failure(self) -> str:
        """Why index 0 failed; empty if it has not."""
        return self._bytes[_REASON : _REASON + self._words[_FAILED]].tobytes().decode(errors="ignore")

    def ranks_elsewhere(self) -> list[tuple[int, str, int]]:
        """Ranks that arrived with another tag or signature than this one: `(index, tag, signature)`."""
        words, turn = self._words, self._sequence & 1
        place = _TAGS + 2 * turn
        tag, signature = words[self._own + place], words[self._own + place + 1]
        return [
            (index, self.tag(index, turn), words[index * _LINE + place + 1])
            for index in range(self.count)
            if words[index * _LINE + place] != tag or words[index * _LINE + place + 1] != signature
        ]

    def tag(self, index: int, turn: int | None = None) -> str:
        """The collective that rank `index` entered last, or the one it arrived at in a turn."""
        start = index * _LINE * 8 + (_DOING if turn is None else _TEXT + turn * _TEXT_SIZE)
        return bytes(self._bytes[start : start + _TEXT_SIZE]).decode("ascii").strip("\0 ")

    def alive(self, index: int) -> bool:
        """Whether the process of rank `index` still exists (a zombie does not)."""
        if index == self.index:
            return True
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, index)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return True
            raise
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, index)
        return False

    def close(self) -> None:
        """Close the memory; it disappears with its last user. Views that still exist keep it mapped."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


@functools.cache
def tag_text(tag: str) -> bytes:
    """A tag as it is written on the board."""
    return tag.encode("ascii", "replace")[:_TEXT_SIZE].ljust(_TEXT_SIZE)


def _short_sleeps() -> None:
    """Let `time.sleep(50e-6)` mean that: Linux rounds sleeps up by 50 microseconds by default."""
    timer_slack = 29
    ctypes.CDLL(None).prctl(timer_slack, 1000, 0, 0, 0)
