"""Check that all ranks hold the same tensors, bit for bit."""

from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from lockstep.distributed.agreement import content_digest, dtype_and_shape, layout_hash, mismatch_error
from lockstep.torch.collectives.checksum import checksum
from lockstep.world import World


class Collectives(Protocol):
    """The part of `lockstep.torch.comm.Comm` that `check_equal` uses."""

    @property
    def world(self) -> World:
        """The ranks."""
        ...

    @property
    def device(self) -> torch.device:
        """Device of this rank."""
        ...

    def max(self, value: Tensor, tag: str = ...) -> Tensor:
        """The largest over all ranks; *collective*."""
        ...

    def gather_object(self, value: Any, tag: str = ...) -> list[Any]:
        """The values of all processes, in rank order; *collective*."""
        ...


def check_equal(comm: Collectives, tensors: Sequence[tuple[str, Tensor | np.ndarray]], tag: str) -> None:
    """Raise `MismatchError` on all ranks unless all hold the same names, types, shapes and bits; *collective*.

    One message of four integers; only on a mismatch a second one, with a digest of each tensor, to name those that
    differ.
    """
    if comm.world.size == 1:
        return
    named = [(name, torch.as_tensor(tensor)) for name, tensor in tensors]
    shapes = torch.tensor(layout_hash({name: _kind(tensor) for name, tensor in named}))
    mine = torch.stack([checksum(t for _, t in named).to(comm.device), shapes.to(comm.device)])
    largest = cast("list[int]", comm.max(torch.cat([mine, ~mine]), tag).tolist())
    # ~x decreases in x, so max(~x) = ~min(x). Every rank decides from the same four numbers.
    if largest[0] == ~largest[2] and largest[1] == ~largest[3]:
        return
    digests: list[dict[str, list[str]]] = comm.gather_object({name: _identity(t) for name, t in named}, tag)
    raise mismatch_error(digests)


def _kind(tensor: Tensor) -> str:
    return dtype_and_shape(str(tensor.dtype).removeprefix("torch."), tensor.shape)


def _identity(tensor: Tensor) -> list[str]:
    """Type and shape, and a digest of the bits."""
    flat = tensor.detach().contiguous().view(-1)
    return [_kind(tensor), content_digest(flat.view(torch.uint8).cpu().numpy().tobytes() if len(flat) else b"")]
