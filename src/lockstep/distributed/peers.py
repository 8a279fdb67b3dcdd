"""The state of the other ranks of this host, from shared memory; errors that name the rank that is missing."""

import time
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from lockstep.distributed.shared_memory import Segment
from lockstep.distributed.watch import Observed, observed
from lockstep.errors import PeerError, RunError

_DEATH_NOTICE_S = 1.0  # how long after a broken connection to look which process ended
_KINDS = (
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
_KIND_BIT = 40
"""Of an `amount`: the bits below it are the bytes, those above the type and the layout."""
_LAYOUT_BIT = 45
_LAYOUTS = 1 << 17
_CODES: dict[Any, int] = {
    key: number << _KIND_BIT
    for number, name in enumerate(_KINDS, 1)
    for key in ((name,) if name == "bfloat16" else (name, np.dtype(name)))
}


def observe(segment: Segment | None, rank: int, row: memoryview, tag: str) -> list[Observed]:
    """The current state of this host's ranks; only of this one, from the `row` of its timers, without shared memory."""
    if segment is None:
        return [observed(rank, row, alive=True, tag=tag)]
    s, first = segment, rank - segment.index
    return [observed(first + i, s.row(i), alive=s.alive(i), tag=s.tag(i), entered=s.entered(i)) for i in range(s.count)]


def lost(segment: Segment | None, rank: int, tag: str, timeout_s: float, error: Exception) -> RunError:
    """The error that names the rank that ended or is late in collective `tag`, for a library's error that does not."""
    text = str(error)
    if "imed out" in text or "imeout" in text:
        late = _latest(segment) if segment is not None else None
        if segment is None or late is None:
            return PeerError(f"rank {rank} got no answer in {tag} within timeout_s={timeout_s:g}")
        return absent(segment, rank, late, tag, timeout_s)
    until = time.monotonic() + _DEATH_NOTICE_S
    while segment is not None and time.monotonic() < until:
        dead = [other for other in range(segment.count) if not segment.alive(other)]
        if dead:
            ended = rank - segment.index + dead[0]
            return PeerError(f"rank {ended} has ended while rank {rank} waited in {tag}", ended)
        time.sleep(0.02)
    line = (text.splitlines() or [type(error).__name__])[0]
    return PeerError(f"another rank ended while rank {rank} waited in {tag} ({line})")


def absent(segment: Segment, rank: int, index: int, tag: str, timeout_s: float) -> RunError:
    """The error for rank `index` of `segment`, which did not come to collective `tag` while `rank` waited."""
    other, theirs = rank - segment.index + index, segment.tag(index)
    if segment.entered(index) == segment.entered(segment.index) and theirs != segment.tag(segment.index):
        return RunError(different_collectives(rank, tag, 0, [(other, theirs, 0)]))
    where = f"the last collective it entered was {theirs}" if theirs else "it has not entered any collective yet"
    return PeerError(f"rank {other} did not come to {tag} within timeout_s={timeout_s:g}; {where}", other)


def layout_code(tensors: Sequence[tuple[object, Sequence[int], object]]) -> int:
    """The layout of tensors that are sent as one, from the name, shape and type of each, as an integer that is not 0.

    Two layouts have the same one with a probability of 1 in 131071.
    """
    text = repr([(name, tuple(shape), str(kind)) for name, shape, kind in tensors])
    return 1 + zlib.crc32(text.encode()) % (_LAYOUTS - 1)


def amount(num_bytes: int, kind: "np.dtype[Any] | str", layout: int = 0) -> int:
    """What a rank sends as one integer that ranks compare: bytes, type of its numbers if known, and `layout_code`."""
    return num_bytes | _CODES.get(kind, 0) | layout << _LAYOUT_BIT


def _without_layout(sent: int) -> int:
    return sent % (1 << _LAYOUT_BIT)


def _in_words(sent: int) -> str:
    kind, num_bytes = divmod(_without_layout(sent), 1 << _KIND_BIT)
    return f"{num_bytes} bytes" + (f" of {_KINDS[kind - 1]}" if kind else "")


def after_failure(tag: str, failed: str) -> RunError:
    """The error of collective `tag` in a process whose collective `failed` has failed before."""
    return RunError(
        f"{tag} cannot follow {failed}, which failed: ranks may be in different collectives now; do not catch the "
        "errors of collectives, except to exit"
    )


def different_collectives(rank: int, tag: str, sent: int, others: Sequence[tuple[int, str, int]]) -> str:
    """The message for ranks in different collectives, or in one with numbers of different sizes or types.

    `others`: rank, tag and `amount` of those that differ from `rank`, `tag` and `sent`.
    """
    elsewhere = [(other, theirs) for other, theirs, _ in others if theirs != tag]
    if elsewhere:
        where = ", ".join(f"rank {other} is in {theirs}" for other, theirs in elsewhere)
        return (
            f"ranks are in different collectives: rank {rank} is in {tag}, {where}; "
            "every rank must call the same collectives in the same order"
        )
    if all(theirs == sent for _, _, theirs in others):
        who = ", ".join(f"rank {other}" for other, _, _ in others)
        return (
            f"ranks are in different collectives that have the same name, {tag}: rank {rank} is in another one than "
            f"{who}; every rank must call the same collectives in the same order"
        )
    if all(_without_layout(theirs) == _without_layout(sent) for _, _, theirs in others):
        who = ", ".join(f"rank {other}" for other, _, _ in others)
        return (
            f"ranks are in the same collective, {tag}, with tensors of other names, shapes or order: rank {rank} gives "
            f"others than {who}, of the same size in all; give every rank the same tensors in the same order"
        )
    amounts = ", ".join(f"rank {other} {_in_words(theirs)}" for other, _, theirs in others)
    return (
        f"ranks are in the same collective, {tag}, with different tensors: rank {rank} sends {_in_words(sent)}, "
        f"{amounts}; tensors must have the same shape and type on every rank"
    )


def _latest(segment: Segment) -> int | None:
    """Index of the rank that keeps this one waiting: it entered the fewest collectives, or is in another one."""
    mine, me = segment.entered(segment.index), segment.tag(segment.index)
    others = [index for index in range(segment.count) if index != segment.index]
    late = [i for i in others if segment.entered(i) < mine or (segment.entered(i) == mine and segment.tag(i) != me)]
    return min(late, key=segment.entered, default=None)
