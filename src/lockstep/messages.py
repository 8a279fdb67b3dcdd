"""Small objects as bytes: JSON, with arrays beside it. Reading a message never runs code from it (no pickle)."""

import json
import struct
from typing import Any

import numpy as np

_ARRAY = "__array__"


def encode(value: Any) -> bytes:
    """Bytes of a JSON-able value that may hold numpy arrays and bytes. Raises TypeError for anything else."""
    blobs: list[bytes] = []

    def replace(item: Any) -> Any:
        if isinstance(item, np.generic):
            return item.item()
        if isinstance(item, np.ndarray) and item.dtype.kind in "biuf":
            blobs.append(item.tobytes())
            return {_ARRAY: [item.dtype.str, list(item.shape), len(blobs[-1])]}
        raise TypeError(f"{type(item).__name__} cannot be sent between ranks; send numbers, text, lists, dicts or arrays")

    text = json.dumps(value, default=replace).encode()
    return struct.pack("<q", len(text)) + text + b"".join(blobs)


def decode(message: bytes) -> Any:
    """The value that `encode` was given; tuples come back as lists."""
    (length,) = struct.unpack_from("<q", message)
    offset = 8 + length

    def restore(item: dict[str, Any]) -> Any:
        nonlocal offset
        if _ARRAY not in item:
            return item
        kind, shape, size = item[_ARRAY]
        array = np.frombuffer(message, np.uint8, size, offset).view(kind).reshape(shape).copy()
        offset += size
        return array

    return json.loads(message[8 : 8 + length], object_hook=restore)
