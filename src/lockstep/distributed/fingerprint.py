"""Fingerprints: hashes that show whether two ranks have the same arrays, or different data."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import cast

import numpy as np

from lockstep.distributed.arguments import a_type
from lockstep.errors import ConfigError


def digest(array: np.ndarray, name: str = "") -> str:
    """blake2b (128 bit, hex) over name, dtype, shape and little-endian bytes of an array."""
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    hashed = hashlib.blake2b(f"{name}|{little.dtype.str}|{array.shape}|".encode(), digest_size=16)
    hashed.update(little.reshape(-1).view(np.uint8).data)  # types of JAX's, such as bfloat16, have no buffer
    return hashed.hexdigest()


def fingerprint(arrays: Mapping[str, np.ndarray]) -> str:
    """One digest of many arrays, in name order. Raises `ConfigError`, which names it, for what is no array."""
    if not isinstance(cast(object, arrays), Mapping):
        raise ConfigError(
            f"fingerprint takes arrays by name, not {a_type(arrays)}; of a module give "
            "{name: p.detach().cpu().numpy() for name, p in policy.state_dict().items()}"
        )
    for name, array in arrays.items():
        if not isinstance(getattr(array, "dtype", None), np.dtype):  # arrays of JAX have one, too
            raise ConfigError(
                f"fingerprint takes arrays, but {name} is {a_type(array)}; give np.asarray(...) of it, of a "
                "tensor tensor.detach().cpu().numpy()"
            )
    return combine(digest(arrays[name], name) for name in sorted(arrays))


def combine(digests: Iterable[str]) -> str:
    """One digest of several, in their order."""
    hashed = hashlib.blake2b(digest_size=16)
    for part in digests:
        hashed.update(part.encode())
    return hashed.hexdigest()
