"""A checksum of the bits of many tensors, computed on their device: cheap enough to compare while training."""

import functools
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from lockstep.distributed.agreement import content_digest, dtype_and_shape

_CHUNK = 1 << 20  # words that share one table of weights: 8 MB of table, however large the tensors
_SIGNED = {1: torch.int8, 2: torch.int16}


def checksum(tensors: Iterable[Tensor]) -> Tensor:
    """Integer hash (int64, no dimensions) of the tensors' bits, in their order, on the first tensor's device.

    The bits are cut into words; each is multiplied by an odd number that depends on its position, and the products are
    summed modulo 2^64. Odd numbers are invertible there: a change of one word always changes the sum. Changes of
    several words cancel with a probability of about 2^-64. Shapes, types and boundaries of tensors are not included.

    0.0 and -0.0 differ, and so do NaNs with different payloads.
    """
    by_place: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        words = _words(tensor)
        by_place.setdefault((words.device, words.dtype), []).append(words)
    total: Tensor | None = None
    chunk = 0
    for parts in by_place.values():
        for words in torch.split(parts[0] if len(parts) == 1 else torch.cat(parts), _CHUNK):
            part = (words * _weights(words.device)[: len(words)]).sum()
            if chunk:  # an odd factor distinguishes chunks and still detects every single change
                part = part * _odd(chunk)
            total = part if total is None else total + part.to(total.device)
            chunk += 1
    return torch.zeros((), dtype=torch.int64) if total is None else total


def dtype_name(dtype: torch.dtype) -> str:
    """A type without its package, for messages: `float32`."""
    return str(dtype).removeprefix("torch.")


def type_and_shape(tensor: Tensor) -> str:
    """Type and shape, for messages."""
    return dtype_and_shape(dtype_name(tensor.dtype), tensor.shape)


def identity(tensor: Tensor) -> list[str]:
    """Type and shape, and a digest of the bits."""
    flat = tensor.detach().contiguous().view(-1)
    bits = flat.view(torch.uint8).cpu().numpy().tobytes() if len(flat) else b""
    return [type_and_shape(tensor), content_digest(bits)]


def _words(tensor: Tensor) -> Tensor:
    """The bits of a tensor [W] as int32; those of narrower elements as integers of their own width."""
    flat = tensor.detach()
    if flat.is_complex():
        flat = torch.view_as_real(flat.resolve_conj())
    flat = flat.contiguous().view(-1)
    if not len(flat):  # empty tensors from numpy have strides that `view` rejects
        return torch.empty(0, dtype=torch.int32, device=flat.device)
    return flat.view(_SIGNED.get(flat.element_size(), torch.int32))


@functools.cache
def _weights(device: torch.device) -> Tensor:
    """An odd number for each position of a chunk: scrambled, so that regular patterns of changes do not cancel."""
    places = np.arange(1, _CHUNK + 1, dtype=np.uint64)
    return torch.from_numpy((_scramble(places) | np.uint64(1)).view(np.int64)).to(device)


@functools.cache
def _odd(chunk: int) -> int:
    """An odd factor for each chunk but the first, as a signed 64-bit integer."""
    return int((_scramble(np.array([chunk + (1 << 40)], dtype=np.uint64)) | np.uint64(1)).view(np.int64)[0])


def _scramble(numbers: "np.ndarray") -> "np.ndarray":
    """The output function of SplitMix64 (Steele, Lea, Flood 2014), modulo 2^64 by numpy's own rules."""
    mixed = numbers * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
