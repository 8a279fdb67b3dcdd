"""The state of the other ranks of this host, from shared memory; errors that name the rank that is missing."""

import time
from collections.abc import Sequence

from lockstep.distributed.shared_memory import Segment
from lockstep.distributed.signature import bytes_and_dtype, without_layout
from lockstep.distributed.watch import Observed, observed
from lockstep.errors import PeerError, RunError

_DEATH_NOTICE_S = 1.0  # how long after a broken connection to look which process ended


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


def after_failure(tag: str, failed: str) -> RunError:
    """The error of collective `tag` in a process whose collective `failed` has failed before."""
    return RunError(
        f"{tag} cannot follow {failed}, which failed: ranks may be in different collectives now; do not catch the "
        "errors of collectives, except to exit"
    )


def different_collectives(rank: int, tag: str, signature: int, others: Sequence[tuple[int, str, int]]) -> str:
    """The text of the error for ranks in different collectives, or in one with messages of different signatures.

    `others`: rank, tag and `message_signature` of those that differ from this `rank` in `tag` or `signature`.
    """
    elsewhere = [(other, theirs) for other, theirs, _ in others if theirs != tag]
    if elsewhere:
        where = ", ".join(f"rank {other} is in {theirs}" for other, theirs in elsewhere)
        return (
            f"ranks are in different collectives: rank {rank} is in {tag}, {where}; "
            "every rank must call the same collectives in the same order"
        )
    if all(theirs == signature for _, _, theirs in others):
        who = ", ".join(f"rank {other}" for other, _, _ in others)
        return (
            f"ranks are in different collectives that have the same name, {tag}: rank {rank} is in another one than "
            f"{who}; every rank must call the same collectives in the same order"
        )
    if all(without_layout(theirs) == without_layout(signature) for _, _, theirs in others):
        who = ", ".join(f"rank {other}" for other, _, _ in others)
        return (
            f"ranks are in the same collective, {tag}, with tensors of other names, shapes or order: rank {rank} gives "
            f"others than {who}, of the same size in all; give every rank the same tensors in the same order"
        )
    sent = ", ".join(f"rank {other} {bytes_and_dtype(theirs)}" for other, _, theirs in others)
    return (
        f"ranks are in the same collective, {tag}, with different tensors: rank {rank} sends "
        f"{bytes_and_dtype(signature)}, {sent}; tensors must have the same shape and type on every rank"
    )


def _latest(segment: Segment) -> int | None:
    """Index of the rank that keeps this one waiting: it entered the fewest collectives, or is in another one."""
    mine, me = segment.entered(segment.index), segment.tag(segment.index)
    others = [index for index in range(segment.count) if index != segment.index]
    late = [i for i in others if segment.entered(i) < mine or (segment.entered(i) == mine and segment.tag(i) != me)]
    return min(late, key=segment.entered, default=None)
