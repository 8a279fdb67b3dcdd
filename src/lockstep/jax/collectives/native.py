"""Sums over the ranks of one host, inside compiled code, in C (`exchange.c`) where this machine has a compiler.

Python does the same, step by step the same in the same memory, at two to three times the delay once there is
arithmetic between two sums: its own code then has to come back into the caches. Ranks may differ in which of the two
they have.
"""

import ctypes
import functools
import hashlib
import os
import shlex
import subprocess
import tempfile
import zlib
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_char, c_int32, c_int64, c_void_p
from pathlib import Path

import jax

from lockstep.distributed.shared_memory import LAYOUT, Segment, ordered, tag_text
from lockstep.distributed.timers import PHASE, SINCE_NS, SYNC, WAIT
from lockstep.distributed.tree import Node
from lockstep.errors import ConfigError
from lockstep.system.processes import private_folder

TARGET = "lockstep_sum"
API = (0, 1)  # version of XLA's FFI: what is used here and in the C code has been there since
_SOURCE = Path(__file__).with_name("exchange.c")
_DEPTH = 12  # of the stack that the additions need: enough for 2048 shards a rank alone
_MOST_USES = 4096
_ADD = -1


class _Host(Structure):
    _fields_ = [
        ("board", c_void_p),
        ("totals_ns", c_void_p),
        ("index", c_int64),
        ("count", c_int64),
        ("spin_ns", c_int64),
    ]


class _Use(Structure):
    _fields_ = [
        ("host", POINTER(_Host)),
        ("length", c_int64),
        ("rows", c_int64),
        ("first", c_int64),
        ("own", c_int64),
        ("steps", c_int64),
        ("program", POINTER(c_int32)),
        ("tag", c_char * LAYOUT["TEXT_SIZE"]),
        ("crc", c_int64),
        ("calls", c_int64),
        ("python", c_void_p),
        ("wait", c_void_p),
    ]


class Native:
    """What all sums of a process have in common.

    Args:
        segment: the memory of its host.
        totals_ns: of its timers.
        rows: the nodes that have a row in the slots.
        own: those of this process, which lie next to each other.
    """

    def __init__(self, segment: Segment, totals_ns: memoryview, rows: Sequence[Node], own: Sequence[Node]) -> None:
        totals = ctypes.addressof(c_int64.from_buffer(totals_ns))
        self._memory = segment, totals_ns  # must live as long as C code writes there
        self._host = _Host(segment.board, totals, segment.index, segment.count, segment.spin_ns)
        self._rows, self._first, self._own = rows, rows.index(own[0]), len(own)

    def use(self, length: int, num_shards: int, tag: str, python: int, wait: int) -> "Use | None":
        """A sum of `length` numbers; None where C cannot do it.

        Args:
            length: float32 numbers.
            num_shards: in all.
            tag: tells what is summed.
            python: address of a handler that makes the whole sum.
            wait: address of a handler that waits until every rank has arrived.
        """
        found, steps = library(), program(self._rows, (0, num_shards))
        if found is None or depth(steps) > _DEPTH or len(_uses) == _MOST_USES:
            return None
        words = (c_int32 * len(steps))(*steps)
        text = tag_text(tag)
        made = _Use(
            ctypes.pointer(self._host), length, len(self._rows), self._first, self._own, len(steps), words, text,
            zlib.crc32(text), 0, python, wait,
        )  # fmt: skip
        _uses.append((made, self))
        found.lockstep_use(len(_uses) - 1, ctypes.byref(made))
        return Use(len(_uses) - 1, made)


class Use:
    """One sum in compiled code.

    Attributes:
        number: by which compiled code names it.
    """

    def __init__(self, number: int, memory: _Use) -> None:
        self.number, self._memory = number, memory

    def taken(self) -> int:
        """How many sums C has made since this was last asked."""
        calls, self._memory.calls = self._memory.calls, 0
        return int(calls)


@functools.cache
def library() -> ctypes.CDLL | None:
    """The C code, compiled when this user first needs it; None where there is no compiler or no place for it."""
    if not ordered():
        return None
    places = LAYOUT | {"PHASE": PHASE, "SINCE_NS": SINCE_NS, "SYNC": SYNC, "WAIT": WAIT, "DEPTH": _DEPTH}
    places |= {"API_MAJOR": API[0], "API_MINOR": API[1], "MOST_USES": _MOST_USES}
    command = [*shlex.split(os.environ.get("CC") or "cc"), "-O3", "-shared", "-fPIC"]
    command += [f"-D{name}={value}" for name, value in places.items()]
    version = hashlib.sha256(_SOURCE.read_bytes() + repr(command).encode()).hexdigest()[:16]
    try:
        path = private_folder() / f"exchange-{version}.so"
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:  # other ranks may be at it, too
                fresh = Path(folder, path.name)
                subprocess.run([*command, "-o", fresh, _SOURCE], check=True, capture_output=True, timeout=60)
                fresh.replace(path)
        found = ctypes.CDLL(str(path))
    except (ConfigError, OSError, subprocess.SubprocessError):
        return None
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(found.lockstep_sum), platform="cpu")
    return found


def program(rows: Sequence[Node], root: Node) -> list[int]:
    """`tree_sum` of rows as steps for a stack: n >= 0 pushes row n, -1 adds the two on top, -2 - n row n to the top."""

    def visit(node: Node) -> list[int]:
        if node in rows:
            return [rows.index(node)]
        low, high = node
        middle = (low + high) // 2
        left, right = visit((low, middle)), visit((middle, high))
        return [*left, _ADD - 1 - right[0]] if len(right) == 1 else [*left, *right, _ADD]

    return visit(root)


def depth(steps: Sequence[int]) -> int:
    """The most rows that the stack of a program holds."""
    held = most = 0
    for step in steps:
        held += 1 if step >= 0 else -1 if step == _ADD else 0
        most = max(most, held)
    return most


_uses: list[tuple[_Use, Native]] = []  # compiled code that nobody calls any more may still be there
