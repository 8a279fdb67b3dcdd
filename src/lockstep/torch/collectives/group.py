"""The process group: the only file that uses `torch.distributed`.

With gloo ranks compare tag, size and layout before each collective; with NCCL messages are numbered and tagged, so that
the host does not wait for the GPU. A broken connection is reported with the rank that exited, not with a TCP port.
"""

import math
import os
import struct
import zlib
from collections import Counter
from collections.abc import Callable
from typing import cast

import torch
import torch.distributed as dist

# Imported before a group opens: a later import, as by torch's optimizers, binds the open group to default arguments of
# functions. It would never be freed, and its threads would abort the process at exit.
import torch.distributed.nn.functional  # pyright: ignore[reportUnusedImport]
from torch import Tensor

from lockstep.distributed import peers
from lockstep.distributed.shared_memory import Segment, tag_text
from lockstep.distributed.signature import message_signature
from lockstep.distributed.timers import WAIT, Timers
from lockstep.errors import RunError
from lockstep.torch.collectives.checksum import dtype_name
from lockstep.torch.collectives.rendezvous import connect
from lockstep.world import World

_NCCL = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    "TORCH_NCCL_ENABLE_MONITORING": "1",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
}
"""How a collective on GPUs that fails ends the process, unless the user decides: at once and with the reason in the log
(3), without waiting for communicators to close, which may hang, or for a dump of what each collective did; also if
NCCL itself hangs (monitoring). Blocking waits would make the host wait for the GPU in each collective."""
_NCCL_HEARTBEAT_S = 60
"""How much longer than a collective NCCL's own thread may hang; torch's default is 8 minutes in all."""
_CHECK_EVERY = 100  # comparing marks needs a host sync: done for one message in this many
_MARKS = 250  # fits in a byte, and Lockstep's own tags all have different marks
_EXACT = 1 << 24  # float32 adds whole numbers exactly up to this one


class Group:
    """The process group of all ranks.

    Attributes:
        segment: the memory shared with the ranks of this host, if open; holds their status.
        num_messages: number of messages this rank has sent, by tag.
        tag: of the collective entered last.
    """

    def __init__(self, world: World, backend: str, timers: Timers, timeout_s: float, startup_timeout_s: float) -> None:
        self.segment: Segment | None = None
        self.num_messages: Counter[str] = Counter()
        self.tag = ""
        self._world = world
        self._backend = backend
        self._timers = timers
        self._timeout_s = timeout_s
        self._startup_timeout_s = startup_timeout_s
        self._number = 0
        self._num_marks = min(_MARKS, math.isqrt(_EXACT // world.size))  # the sum of all squares is exact
        self._tables: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        """All marks and their squares [marks, 2], on a device."""

    def open(self) -> None:
        """Rendezvous with the other ranks."""
        if self._backend == "nccl":
            set_nccl_variables(self._timeout_s)
        connect(self._world, self._backend, self._timeout_s, self._startup_timeout_s)

    def close(self) -> None:
        """Close the shared memory and the process group."""
        if self.segment is not None:
            self.segment.close()
            self.segment = None
        if self._world.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def gather(self, flat: Tensor, tag: str, layout: int = 0, *, check_now: bool = False) -> Tensor:
        """The tensors [n] of all ranks, [size, n]. Ranks compare the `layout_code`.

        On a GPU they do so in every `_CHECK_EVERY`th message, and with `check_now`.
        """
        if not is_on_gpu(flat):
            self._compare(tag, flat.nbytes, flat.dtype, layout)
            return self._gather(flat, tag)
        if self._backend == "gloo":
            return self.gather(flat.cpu(), tag, layout).to(flat.device)
        every = self._gather(torch.cat([flat, self._mark(tag, flat, layout)[:1]]), tag)
        if check_now or self._check_is_due():
            marks = cast("list[float]", every[:, -1].tolist())
            odd = [rank for rank, mark in enumerate(marks) if mark != marks[self._world.rank]]
            if odd:
                raise RunError(
                    f"ranks are in different collectives: rank {self._world.rank} is in {tag} (number {self._number}), "
                    f"rank {', '.join(map(str, odd))} in another{_or_tensors(layout)}"
                )
        return every[:, :-1]

    def sum(self, flat: Tensor, tag: str, layout: int = 0) -> Tensor:
        """All-reduce [n] over ranks; the backend chooses the order of additions."""
        if not is_on_gpu(flat):
            self._compare(tag, flat.nbytes, flat.dtype, layout)
            total = flat.clone()
            self._send(tag, lambda: dist.all_reduce(total))  # pyright: ignore[reportUnknownLambdaType]
            return total
        if self._backend == "gloo":
            return self.sum(flat.cpu(), tag, layout).to(flat.device)
        # Unless all marks are equal, some rank's mark or its square differs from the mean over ranks.
        mark = self._mark(tag, flat, layout)
        marked = torch.cat([flat, mark])
        self._send(tag, lambda: dist.all_reduce(marked))  # pyright: ignore[reportUnknownLambdaType]
        if self._check_is_due() and bool((marked[-2:] != mark * self._world.size).any()):
            raise RunError(
                f"ranks are in different collectives: rank {self._world.rank} is in {tag} (number {self._number})"
                f"{_or_tensors(layout)}"
            )
        return marked[:-2]

    def start_sum(self, part: Tensor, tag: str, size: int | None, layout: int = 0) -> Callable[[], object]:
        """Start to add a tensor over ranks, in place; returns a function that waits for the sum.

        Args:
            part: of a larger message.
            tag: of the message.
            size: of the message, to compare between ranks before its first part; None for later parts.
            layout: `layout_code` of the message, compared likewise.
        """
        if not is_on_gpu(part) and size is not None:
            self._compare(tag, size, part.dtype, layout)
        started: list[dist.Work] = []
        self._send(tag, lambda: started.append(dist.all_reduce(part, async_op=True)))  # pyright: ignore
        return lambda: self._send(tag, started[0].wait, messages=0)

    def broadcast_(self, flat: Tensor, source: int, tag: str, layout: int = 0) -> None:
        """Broadcast the tensor of rank `source`."""
        if not is_on_gpu(flat):
            self._compare(tag, flat.nbytes, flat.dtype, layout)
        elif self._backend == "gloo":
            on_host = flat.cpu()
            self.broadcast_(on_host, source, tag, layout)
            flat.copy_(on_host)
            return
        else:
            self.gather(torch.zeros(1, device=flat.device), tag, layout, check_now=True)  # it has no marks, and is rare
        raw = flat if is_on_gpu(flat) else flat.view(torch.uint8)  # gloo does not know all types
        self._send(tag, lambda: dist.broadcast(raw, src=source))  # pyright: ignore[reportUnknownLambdaType]

    def enter(self, tag: str) -> None:
        """Record which collective this rank enters."""
        self.tag = tag
        if self.segment is not None:
            self.segment.enter(tag)

    def _compare(self, tag: str, size: int, dtype: torch.dtype, layout: int) -> None:
        """Raise `RunError` unless all ranks have the same tag and signature: gloo aborts a process on other bytes."""
        signature = message_signature(size, dtype_name(dtype), layout)
        mine = torch.frombuffer(bytearray(struct.pack("<q", signature) + tag_text(tag)), dtype=torch.uint8)
        gathered: list[tuple[int, str, int]] = []
        for rank, row in enumerate(self._gather(mine, tag, messages=0)):
            header = row.numpy().tobytes()
            (their_signature,) = struct.unpack_from("<q", header)
            gathered.append((rank, header[8:].decode("ascii").rstrip(), their_signature))
        own = gathered[self._world.rank]
        others = [one for one in gathered if one[1:] != own[1:]]
        if others:
            own_tag = own[1]  # as the others read it
            raise RunError(peers.different_collectives(self._world.rank, own_tag, signature, others))

    def _gather(self, flat: Tensor, tag: str, messages: int = 1) -> Tensor:
        every = flat.new_empty(self._world.size, flat.numel())
        self._send(tag, lambda: dist.all_gather(list(every.unbind()), flat), messages)  # pyright: ignore[reportUnknownLambdaType]
        return every

    def _mark(self, tag: str, like: Tensor, layout: int) -> Tensor:
        """The mark of the next collective and its square, of the device and type of a tensor.

        It is read from a table on the device: a copy of a number from the host would wait for the device.
        """
        self._number += 1
        key = like.device, like.dtype
        if key not in self._tables:
            marks = torch.arange(self._num_marks, dtype=like.dtype, device=like.device)
            self._tables[key] = torch.stack([marks, marks * marks], 1)
        return self._tables[key][(self._number * 31 + zlib.crc32(tag.encode()) + layout) % self._num_marks]

    def _check_is_due(self) -> bool:
        return self._number % _CHECK_EVERY == 0

    def _send(self, tag: str, collective: Callable[[], object], messages: int = 1) -> None:
        self.num_messages[tag] += messages
        previous = self._timers.enter(WAIT)
        try:
            collective()
        except RuntimeError as error:
            raise peers.lost(self.segment, self._world.rank, tag, self._timeout_s, error) from error
        self._timers.enter(previous)


def _or_tensors(layout: int) -> str:
    """Of a collective whose tensors have a layout: marks do not tell which of both differs."""
    return ", or gives tensors of other names, shapes or order than another rank" if layout else ""


def is_on_gpu(tensor: Tensor) -> bool:
    """Whether a tensor is in the memory of a GPU."""
    return tensor.device.type != "cpu"


def set_nccl_variables(timeout_s: float) -> None:
    """Set how NCCL's errors and timeouts end this process; variables of the user have precedence.

    Args:
        timeout_s: bound on a collective.
    """
    for name, value in _NCCL.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", str(int(timeout_s) + _NCCL_HEARTBEAT_S))
