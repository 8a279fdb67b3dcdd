"""Serialize small objects: JSON, followed by the bytes of arrays. No pickle: reading never runs code."""

import json
import struct
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

_ARRAY = "__array__"
_REGISTERED = 2
"""`isbuiltin` of types that JAX registers with numpy, such as bfloat16."""


def encode(value: Any) -> bytes:
    """Serialize a JSON-able value that may contain numpy arrays. Raises TypeError for anything else."""
    blobs: list[bytes] = []

    def replace(item: Any) -> Any:
        kind = type(item).__name__
        if isinstance(item, np.generic):
            return cast(Any, item).item()
        if isinstance(item, np.ndarray):
            array = cast(NDArray[Any], item)
            registered = array.dtype.isbuiltin == _REGISTERED
            if array.dtype.kind in "biufc" or registered:
                blobs.append(array.tobytes())
                dtype = array.dtype.name if registered else array.dtype.str
                return {_ARRAY: [dtype, list(array.shape), len(blobs[-1])]}
            kind = f"an array of {array.dtype}"
        convert = "; convert it with np.asarray(x) or float(x)" if kind in ("ArrayImpl", "Tensor", "Parameter") else ""
        raise TypeError(
            f"{kind} cannot be sent between ranks; send numbers, text, lists, dicts or numpy arrays{convert}"
        )

    text = json.dumps(value, default=replace).encode()
    return struct.pack("<q", len(text)) + text + b"".join(blobs)


def decode(message: bytes) -> Any:
    """Deserialize a value of `encode`; tuples become lists."""
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
