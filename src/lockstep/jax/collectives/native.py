"""Sums over the ranks of one host, inside compiled code, in C (`exchange.c`) where this machine has a compiler.

`lockstep.distributed` does the same in Python, with the same protocol in the same shared memory, at two to three times
the latency when there is arithmetic between two sums, because the interpreter's code has left the caches by then. Ranks
may differ in which of the two they use.
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
from lockstep.distributed.signature import message_signature
from lockstep.distributed.timers import PHASE, SINCE_NS, SYNC, WAIT
from lockstep.distributed.tree import Node
from lockstep.errors import ConfigError
from lockstep.system.processes import private_folder

TARGET = "lockstep_sum"
API = (0, 1)  # oldest version of XLA's FFI with the fields used here and in the C code
_SOURCE = Path(__file__).with_name("exchange.c")
_DEPTH = 12  # of the stack of partial sums; enough for 2048 shards per rank
_MAX_SUMS = 4096
_ADD = -1


class _HostStruct(Structure):
    _fields_ = [
        ("board", c_void_p),
        ("totals_ns", c_void_p),
        ("index", c_int64),
        ("count", c_int64),
        ("spin_ns", c_int64),
    ]


class _SumStruct(Structure):
    _fields_ = [
        ("host", POINTER(_HostStruct)),
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


class NativeSums:
    """The C implementation of all sums of a process.

    Args:
        segment: shared memory of its host.
        totals_ns: time per phase, of its timers.
        rows: the tree nodes that have a row in shared memory.
        own: those of this process, which are adjacent.
    """

    def __init__(self, segment: Segment, totals_ns: memoryview, rows: Sequence[Node], own: Sequence[Node]) -> None:
        totals = ctypes.addressof(c_int64.from_buffer(totals_ns))
        self._memory = segment, totals_ns  # keeps the memory alive that C code writes to
        self._host = _HostStruct(segment.board, totals, segment.index, segment.count, segment.spin_ns)
        self._rows, self._first, self._own = rows, rows.index(own[0]), len(own)

    def use(self, length: int, num_shards: int, tag: str, python: int, wait: int) -> "NativeSum | None":
        """Register a sum of `length` numbers; None if it is not available in C.

        Args:
            length: float32 numbers.
            num_shards: in all.
            tag: names the collective in errors.
            python: address of a handler that computes the whole sum.
            wait: address of a handler that waits until every rank has arrived.
        """
        native, steps = library(), program(self._rows, (0, num_shards))
        if native is None or depth(steps) > _DEPTH or len(_registered) == _MAX_SUMS:
            return None
        steps_array = (c_int32 * len(steps))(*steps)
        text = tag_text(tag)
        made = _SumStruct(
            ctypes.pointer(self._host), length, len(self._rows), self._first, self._own, len(steps), steps_array, text,
            zlib.crc32(text), 0, python, wait,
        )  # fmt: skip
        _registered.append((made, self))
        native.lockstep_use(len(_registered) - 1, ctypes.byref(made))
        return NativeSum(len(_registered) - 1, made)


class NativeSum:
    """One sum in compiled code.

    Attributes:
        number: identifies it in compiled code.
    """

    def __init__(self, number: int, memory: _SumStruct) -> None:
        self.number, self._memory = number, memory

    def take_native_calls(self) -> int:
        """The number of sums made in C since the last call."""
        calls, self._memory.calls = self._memory.calls, 0
        return int(calls)


@functools.cache
def library() -> ctypes.CDLL | None:
    """The C code, compiled on first use and cached per user; None without a compiler or a private folder."""
    if not ordered():
        return None
    definitions = LAYOUT | {"PHASE": PHASE, "SINCE_NS": SINCE_NS, "SYNC": SYNC, "WAIT": WAIT, "DEPTH": _DEPTH}
    definitions |= {
        "FLOAT32": message_signature(0, "float32"),
        "API_MAJOR": API[0],
        "API_MINOR": API[1],
        "MOST_USES": _MAX_SUMS,
    }
    command = [*shlex.split(os.environ.get("CC") or "cc"), "-O3", "-shared", "-fPIC"]
    command += [f"-D{name}={value}" for name, value in definitions.items()]
    version = hashlib.sha256(_SOURCE.read_bytes() + repr(command).encode()).hexdigest()[:16]
    try:
        path = private_folder() / f"exchange-{version}.so"
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:  # other ranks may compile it at the same time
                fresh = Path(folder, path.name)
                subprocess.run([*command, "-o", fresh, _SOURCE], check=True, capture_output=True, timeout=60)
                fresh.replace(path)
        loaded = ctypes.CDLL(str(path))
    except (ConfigError, OSError, subprocess.SubprocessError):
        return None
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(loaded.lockstep_sum), platform="cpu")
    return loaded


def program(rows: Sequence[Node], root: Node) -> list[int]:
    """`tree_sum` of rows as a stack program: n >= 0 pushes row n, -1 adds the top two, -2 - n adds row n to the top."""

    def visit(node: Node) -> list[int]:
        if node in rows:
            return [rows.index(node)]
        low, high = node
        middle = (low + high) // 2
        left, right = visit((low, middle)), visit((middle, high))
        return [*left, _ADD - 1 - right[0]] if len(right) == 1 else [*left, *right, _ADD]

    return visit(root)


def depth(steps: Sequence[int]) -> int:
    """The stack depth that a program needs."""
    size = deepest = 0
    for step in steps:
        size += 1 if step >= 0 else -1 if step == _ADD else 0
        deepest = max(deepest, size)
    return deepest


_registered: list[tuple[_SumStruct, NativeSums]] = []  # never freed: XLA may keep compiled code that refers to them
