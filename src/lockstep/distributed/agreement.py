"""Checks that ranks have the same tensors and collected different data."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.distributed.ranges import listed
from lockstep.errors import MismatchError, RunError

_CAUSE = "something changed it outside the collectives, or a rank skipped one"
Gather = Callable[[Any, str], list[Any]]
"""`Comm.gather_object`: the values of all processes, in their order; *collective*."""


def mismatch_error(every: Sequence[Mapping[str, Sequence[str]]]) -> MismatchError:
    """The error for ranks with different tensors, from those of each rank: name -> (type and shape, digest)."""
    names = sorted({name for held in every for name in held})
    differing = [name for name in names if any(held.get(name) != every[0].get(name) for held in every)]
    if not differing:
        ranks = list(range(len(every)))
        return MismatchError("ranks found different checksums of equal tensors; suspect the hardware", ranks, [])
    versions = [repr([held.get(name) for name in differing]) for held in every]
    counts = sorted((versions.count(version) for version in set(versions)), reverse=True)
    majority = max(versions, key=versions.count) if counts[0] > counts[1] else None
    odd = [rank for rank, version in enumerate(versions) if version != majority]
    single, numbers = len(odd) == 1, listed(odd)
    tensors = differing[0] + _how(differing[0], every, odd)
    if more := len(differing) - 1:
        tensors += f" and {more} more"
    if majority is None:
        text = f"ranks {numbers} hold different {tensors}"
    else:
        text = f"rank{'' if single else 's'} {numbers} differ{'s' if single else ''} from the other ranks in {tensors}"
    return MismatchError(f"{text}; {_CAUSE}", odd, differing)


def check_different(gather: Gather, fingerprint: str | Sequence[str], tag: str) -> None:
    """Raise `RunError` on all ranks if two of them have the same fingerprint; *collective*.

    `fingerprint` is that of the data of this process' rank, or one for each of its ranks.
    """
    gathered: list[Any] = gather([fingerprint] if isinstance(fingerprint, str) else list(fingerprint), tag)
    fingerprints = [fingerprint for of_process in gathered for fingerprint in of_process]
    groups: dict[Any, list[str]] = {}
    for rank, fingerprint in enumerate(fingerprints):
        groups.setdefault(fingerprint, []).append(str(rank))
    equal = [f"ranks {', '.join(ranks)}" for ranks in groups.values() if len(ranks) > 1]
    if equal:
        raise RunError(
            f"{' and '.join(equal)} collected the same data{' each' * (len(equal) > 1)}; their environments ignore the "
            "seed they are given, or a wrapper seeds them alike"
        )


def layout_hash(kinds: Mapping[str, str]) -> int:
    """Integer hash (64 bits, signed) of the names, types and shapes of tensors, `name -> kind`, in their order."""
    text = "|".join(f"{name}:{kind}" for name, kind in kinds.items())
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def dtype_and_shape(dtype: str, shape: Sequence[int]) -> str:
    """A tensor's type and shape for messages: `float32 [4, 2]`."""
    return f"{dtype} {list(shape)}"


def content_digest(bits: bytes) -> str:
    """Digest of a tensor's bits (128 bit, hex)."""
    return hashlib.blake2b(bits, digest_size=16).hexdigest()


def _how(name: str, every: Sequence[Mapping[str, Sequence[str]]], odd: list[int]) -> str:
    """How a tensor differs, for messages; empty if only its bits do."""
    lacking = [rank for rank, held in enumerate(every) if name not in held]
    if lacking:
        return f" (rank{'s' * (len(lacking) > 1)} {', '.join(map(str, lacking))} without it)"
    kinds = [held[name][0] for held in every]
    if len(set(kinds)) == 1:
        return ""
    return f" ({', '.join(f'rank {rank}: {kinds[rank]}' for rank in sorted({0, *odd}))})"
