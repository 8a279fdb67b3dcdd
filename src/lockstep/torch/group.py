"""The process group between ranks: the only file that names `torch.distributed`.

Messages are numbered and tagged, and a broken connection is told as the rank that ended, not as a TCP port.
"""

import zlib
from collections import Counter
from collections.abc import Callable
from typing import cast

import torch
import torch.distributed as dist

# Imported before a group opens: whoever imports this module later, torch's optimizers among them, binds the open group
# to default arguments of functions. It would never be freed, and its threads abort a process that ends well.
import torch.distributed.nn.functional  # pyright: ignore[reportUnusedImport]
from torch import Tensor

from lockstep import peers
from lockstep.errors import RunError
from lockstep.record.timers import WAIT, Timers
from lockstep.segment import Segment
from lockstep.torch.rendezvous import connect
from lockstep.world import World

_LOOK_EVERY = 100  # on a GPU, comparing marks waits for the device: do it for one message in so many
_MARKS = 250  # fits in a byte, its squares add up exactly in float32, and the library's own tags all differ by it


class Group:
    """All ranks of a world, connected.

    Attributes:
        segment: the memory shared with the ranks of this host, once there is one; tells which of them live.
        num_messages: how many messages this rank has sent, by tag.
        tag: of the collective entered last.
    """

    def __init__(self, world: World, backend: str, timers: Timers, timeout_s: float, startup_timeout_s: float) -> None:
        self.segment: Segment | None = None
        self.num_messages: Counter[str] = Counter()
        self.tag = ""
        self._world, self._backend, self._timers = world, backend, timers
        self._timeout_s, self._startup_timeout_s = timeout_s, startup_timeout_s
        self._number = 0

    def open(self) -> None:
        """Meet the other ranks."""
        connect(self._world, self._backend, self._timeout_s, self._startup_timeout_s)

    def close(self) -> None:
        """Let go of the others."""
        if self.segment is not None:
            self.segment.close()
            self.segment = None
        if self._world.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def gather(self, flat: Tensor, tag: str) -> Tensor:
        """The tensors [n] of all ranks, [size, n]."""
        marked = torch.cat([flat, flat.new_tensor([self._mark(tag)])])
        every = marked.new_empty(self._world.size, marked.numel())
        self._send(tag, lambda: dist.all_gather(list(every.unbind()), marked))  # pyright: ignore[reportUnknownLambdaType]
        if self._may_look(flat):
            marks = cast("list[float]", every[:, -1].tolist())
            odd = [rank for rank, mark in enumerate(marks) if mark != marks[self._world.rank]]
            if odd:
                raise RunError(
                    f"ranks are in different collectives: rank {self._world.rank} is in {tag} (number {self._number}), "
                    f"rank {', '.join(map(str, odd))} in another"
                )
        return every[:, :-1]

    def sum(self, flat: Tensor, tag: str) -> Tensor:
        """The backend's own sum of [n] over ranks; the order of additions is its own."""
        mark = self._mark(tag)
        # Some rank sees a mean of marks, or of their squares, that is not its own unless all marks are equal.
        marked = torch.cat([flat, flat.new_tensor([mark, mark * mark])])
        self._send(tag, lambda: dist.all_reduce(marked))  # pyright: ignore[reportUnknownLambdaType]
        if self._may_look(flat) and (marked[-2:] / self._world.size).tolist() != [mark, mark * mark]:
            raise RunError(
                f"ranks are in different collectives: rank {self._world.rank} is in {tag} (number {self._number})"
            )
        return marked[:-2]

    def broadcast_(self, flat: Tensor, source: int, tag: str) -> None:
        """Give every rank the tensor of rank `source`."""
        self.gather(flat.new_zeros(1), tag)  # a broadcast carries no marks of its own, and is rare
        self._send(tag, lambda: dist.broadcast(flat, src=source))  # pyright: ignore[reportUnknownLambdaType]

    def enter(self, tag: str) -> None:
        """Tell whoever watches which collective this rank enters."""
        self.tag = tag
        if self.segment is not None:
            self.segment.enter(tag)

    def _mark(self, tag: str) -> int:
        self._number += 1
        return (self._number * 31 + zlib.crc32(tag.encode())) % _MARKS

    def _may_look(self, flat: Tensor) -> bool:
        return flat.device.type == "cpu" or self._number % _LOOK_EVERY == 0

    def _send(self, tag: str, collective: Callable[[], object]) -> None:
        self.num_messages[tag] += 1
        previous = self._timers.enter(WAIT)
        try:
            collective()
        except RuntimeError as error:
            raise peers.lost(self.segment, self._world.rank, tag, self._timeout_s, error) from error
        self._timers.enter(previous)
