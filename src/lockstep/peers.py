"""What a rank learns of the others of its host from the memory they share: what they do, and who has ended."""

import time

from lockstep.errors import PeerError
from lockstep.segment import Segment
from lockstep.watch import Observed, observed

_DEATH_NOTICE_S = 1.0  # how long after a broken connection to look which process ended


def observe(segment: Segment | None, rank: int, row: memoryview, tag: str) -> list[Observed]:
    """What the ranks of this host do at this moment.

    Args:
        segment: their memory; without one this rank knows of itself alone.
        rank: this one.
        row: the record that its timers write.
        tag: of the collective it entered last.
    """
    if segment is None:
        return [observed(rank, row, alive=True, tag=tag)]
    s, first = segment, rank - segment.index
    return [observed(first + i, s.row(i), alive=s.alive(i), tag=s.tag(i), entered=s.entered(i)) for i in range(s.count)]


def lost(segment: Segment | None, rank: int, tag: str, timeout_s: float, error: Exception) -> PeerError:
    """Who ended, as far as this host can tell, when a library could not reach somebody and says only `error`."""
    said = str(error)
    if "imed out" in said or "imeout" in said:
        return PeerError(f"rank {rank} got no answer in {tag} within timeout_s={timeout_s:g}")
    until = time.monotonic() + _DEATH_NOTICE_S
    while segment is not None and time.monotonic() < until:
        dead = [other for other in range(segment.count) if not segment.alive(other)]
        if dead:
            ended = rank - segment.index + dead[0]
            return PeerError(f"rank {ended} has ended while rank {rank} waited in {tag}", ended)
        time.sleep(0.02)
    line = (said.splitlines() or [type(error).__name__])[0]
    return PeerError(f"another rank ended while rank {rank} waited in {tag} ({line})")
