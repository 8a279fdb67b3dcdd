"""The proof that ranks hold the same tensors, bit for bit."""

from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from lockstep.distributed.agreement import content_digest, dtype_and_shape, layout_hash, mismatch_error
from lockstep.torch.collectives.checksum import checksum
from lockstep.world import World


class Collectives(Protocol):
    """What this proof needs of `lockstep.torch.comm.Comm`, which calls it."""

    @property
    def world(self) -> World:
        """Who takes part."""
        ...

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        ...

    def max(self, value: Tensor, tag: str = ...) -> Tensor:
        """The largest over all ranks; *collective*."""
        ...

    def gather_object(self, value: Any, tag: str = ...) -> list[Any]:
        """The values of all processes, in their order; *collective*."""
        ...


def check_equal(comm: Collectives, tensors: Sequence[tuple[str, Tensor | np.ndarray]], tag: str) -> None:
    """Raise `MismatchError` on all ranks unless all hold the same names, types, shapes and bits; *collective*.

    One message of four integers, whatever the tensors; a second one, with a digest of each tensor, only to name what
    differs.
    """
    if comm.world.size == 1:
        return
    named = [(name, torch.as_tensor(tensor)) for name, tensor in tensors]
    shapes = torch.tensor(layout_hash({name: _kind(tensor) for name, tensor in named}))
    mine = torch.stack([checksum(t for _, t in named).to(comm.device), shapes.to(comm.device)])
    largest = cast("list[int]", comm.max(torch.cat([mine, ~mine]), tag).tolist())
    # ~x falls where x rises: the largest ~x is that of the smallest x. Every rank decides from the same four numbers.
    if largest[0] == ~largest[2] and largest[1] == ~largest[3]:
        return
    every: list[dict[str, list[str]]] = comm.gather_object({name: _identity(t) for name, t in named}, tag)
    raise mismatch_error(every)


def _kind(tensor: Tensor) -> str:
    return dtype_and_shape(str(tensor.dtype).removeprefix("torch."), tensor.shape)


def _identity(tensor: Tensor) -> list[str]:
    """Type and shape, and a digest of the bits."""
    flat = tensor.detach().contiguous().view(-1)
    return [_kind(tensor), content_digest(flat.view(torch.uint8).cpu().numpy().tobytes() if len(flat) else b"")]
