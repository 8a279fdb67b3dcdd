"""Proofs among ranks: that they hold the same tensors, bit for bit, and that they collected different data."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from lockstep.errors import MismatchError, RunError
from lockstep.torch.checksum import checksum

if TYPE_CHECKING:
    from lockstep.torch.comm import Comm

_CAUSE = "something changed it outside the collectives, or a rank skipped one"


def check_equal(comm: "Comm", named: Sequence[tuple[str, Tensor]], tag: str) -> None:
    """Raise `MismatchError` on all ranks unless all hold the same names, types, shapes and bits; *collective*.

    One message of four integers, whatever the tensors; a second one, with a digest of each tensor, only to name what
    differs.
    """
    if comm.world.size == 1:
        return
    mine = torch.stack([checksum(t for _, t in named).to(comm.device), _layout(named).to(comm.device)])
    largest = cast("list[int]", comm.max(torch.cat([mine, ~mine]), tag).tolist())
    # ~x falls where x rises: the largest ~x is that of the smallest x. Every rank decides from the same four numbers.
    if largest[0] == ~largest[2] and largest[1] == ~largest[3]:
        return
    every: list[dict[str, list[str]]] = comm.gather_object({name: _identity(t) for name, t in named}, tag)
    raise mismatch(every)


def mismatch(every: Sequence[Mapping[str, Sequence[str]]]) -> MismatchError:
    """What to say, from each rank's tensors: name -> (type and shape, digest)."""
    names = sorted({name for held in every for name in held})
    differing = [name for name in names if any(held.get(name) != every[0].get(name) for held in every)]
    if not differing:
        everyone = list(range(len(every)))
        return MismatchError("ranks found different checksums of equal tensors; suspect the hardware", everyone, [])
    versions = [repr([held.get(name) for name in differing]) for held in every]
    counts = sorted((versions.count(version) for version in set(versions)), reverse=True)
    most = max(versions, key=versions.count) if counts[0] > counts[1] else None
    odd = [rank for rank, version in enumerate(versions) if version != most]
    one, who = len(odd) == 1, ", ".join(map(str, odd[:-1])) + " and " * (len(odd) > 1) + str(odd[-1])
    what = differing[0] + _how(differing[0], every, odd)
    if more := len(differing) - 1:
        what += f" and {more} more"
    if most is None:
        text = f"ranks {who} hold different {what}"
    else:
        text = f"rank{'' if one else 's'} {who} differ{'s' if one else ''} from the other ranks in {what}"
    return MismatchError(f"{text}; {_CAUSE}", odd, differing)


def check_different(comm: "Comm", fingerprint: str, tag: str) -> None:
    """Raise `RunError` on all ranks if two of them have the same fingerprint; *collective*."""
    every: list[Any] = comm.gather_object(fingerprint, tag)
    twins = [rank for rank, one in enumerate(every) if every.count(one) > 1]
    if twins:
        raise RunError(
            f"ranks {', '.join(map(str, twins))} collected the same data; their environments ignore the seed "
            "they are given, or a wrapper seeds them alike"
        )


def _how(name: str, every: Sequence[Mapping[str, Sequence[str]]], odd: list[int]) -> str:
    """Said of a tensor that is not merely of other bits."""
    lacking = [rank for rank, held in enumerate(every) if name not in held]
    if lacking:
        return f" (rank{'s' * (len(lacking) > 1)} {', '.join(map(str, lacking))} without it)"
    kinds = [held[name][0] for held in every]
    if len(set(kinds)) == 1:
        return ""
    return f" ({', '.join(f'rank {rank}: {kinds[rank]}' for rank in sorted({0, *odd}))})"


def _layout(named: Sequence[tuple[str, Tensor]]) -> Tensor:
    """Integer hash (int64) of names, types and shapes."""
    text = "|".join(f"{name}:{_kind(tensor)}" for name, tensor in named)
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)
    return torch.tensor(number)


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _identity(tensor: Tensor) -> list[str]:
    """Type and shape, and a digest of the bits."""
    flat = tensor.detach().contiguous().view(-1)
    raw = flat.view(torch.uint8).cpu().numpy().tobytes() if len(flat) else b""
    return [_kind(tensor), hashlib.blake2b(raw, digest_size=16).hexdigest()]
