"""Exchange between the CPU ranks of one host through shared memory: write, arrive, wait, read."""

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from lockstep.errors import PeerError, RunError
from lockstep.record.timers import WAIT, Timers
from lockstep.segment import Segment
from lockstep.tree import Node
from lockstep.watch import MARGIN_S

_LONGEST_LOOK_S = 2.0


class Slots:
    """One slot for each tree node that a rank can sum alone, twice, for collectives in turn.

    Args:
        segment: the host's shared memory.
        nodes: what each rank writes.
        broadcast: tells all ranks an address that rank 0 found; collective, ends when all have it.
        barrier: collective.
        timeout_s: bound on one exchange; given up `MARGIN_S` later, since the watch knows more about who is stuck.
        timers: told while this rank waits.
    """

    def __init__(  # a slot table has these six neighbours and no default for any of them
        self,
        segment: Segment,
        nodes: Sequence[Sequence[Node]],
        broadcast: Callable[[str], str],
        barrier: Callable[[], None],
        timeout_s: float,
        timers: Timers,
    ) -> None:
        self._segment, self._broadcast, self._barrier = segment, broadcast, barrier
        self._timeout_s, self._timers = timeout_s, timers
        self._mine = list(nodes[segment.index])
        self._all = [node for owned in nodes for node in owned]
        self._capacity = 0
        self._views: dict[tuple[int, int, torch.dtype], dict[Node, Tensor]] = {}
        self._tag = ""

    def exchange(self, parts: Sequence[Tensor], tag: str) -> Mapping[Node, Tensor]:
        """Every rank's parts by node. The tensors are shared memory: read them before the exchange after the next."""
        length, kind = parts[0].numel(), parts[0].dtype
        if length * parts[0].element_size() > self._capacity:
            self._grow(length * parts[0].element_size())
        key = (self._segment.turn(), length, kind)
        views = self._views.get(key)
        if views is None:
            views = self._views[key] = self._make_views(*key)
        for node, part in zip(self._mine, parts, strict=True):
            views[node].copy_(part)
        self._meet(tag, length * parts[0].element_size())
        return views

    def _meet(self, tag: str, size: int) -> None:
        self._tag = tag
        self._segment.arrive(tag, size)
        previous = self._timers.enter(WAIT)
        self._waited_s, self._looked_at = 0.0, time.monotonic()
        self._segment.wait(self._on_wait)
        self._timers.enter(previous)
        others = self._segment.others()
        if others:
            raise RunError(different_collectives(self._segment.index, tag, size, others))

    def _on_wait(self, index: int) -> None:
        dead = [rank for rank in range(self._segment.count) if not self._segment.alive(rank)]
        if dead:
            raise PeerError(f"rank {dead[0]} has ended while rank {self._segment.index} waited in {self._tag}", dead[0])
        now = time.monotonic()
        # Time in which this process itself was stopped (a suspended job) says nothing about the others.
        self._waited_s += min(now - self._looked_at, _LONGEST_LOOK_S)
        self._looked_at = now
        if self._waited_s > self._timeout_s + MARGIN_S:
            where = self._segment.tag(index) or "its start"
            raise PeerError(
                f"rank {index} did not come to {self._tag} within timeout_s={self._timeout_s:g}; "
                f"its last collective was {where}",
                index,
            )

    def _grow(self, size: int) -> None:
        """Make slots of at least `size` bytes. All ranks come here together: they send messages of equal sizes."""
        self._views.clear()
        self._capacity = 1 << max(12, (size - 1).bit_length())
        total = 2 * len(self._all) * self._capacity
        if self._segment.index == 0:
            self._broadcast(self._segment.create_slots(total))
        else:
            self._segment.attach_slots(self._broadcast(""), total)
        self._barrier()
        self._segment.slots_attached()

    def _make_views(self, turn: int, length: int, kind: torch.dtype) -> dict[Node, Tensor]:
        first = turn * len(self._all)
        return {
            node: torch.frombuffer(
                self._segment.slots, dtype=kind, count=length, offset=(first + number) * self._capacity
            )
            for number, node in enumerate(self._all)
        }


def different_collectives(rank: int, tag: str, size: int, others: Sequence[tuple[int, str, int]]) -> str:
    """What to say when ranks met in different collectives."""
    where = ", ".join(f"rank {other} is in {theirs} ({bytes_} bytes)" for other, theirs, bytes_ in others)
    return f"ranks are in different collectives: rank {rank} is in {tag} ({size} bytes), {where}"
