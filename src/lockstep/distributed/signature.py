"""The signature of a message: what ranks compare before they exchange numbers, so that they do not mix different ones.

It is one 64-bit integer: the bytes of the message, the type of its numbers, and a hash of the names and shapes of the
tensors in it. The name of the collective, its tag, is compared separately.
"""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

_DTYPES = (
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
_DTYPE_BIT = 40
"""The lowest bit of the type; the bits below it are the number of bytes."""
_LAYOUT_BIT = 45
"""The lowest bit of the layout."""
_LAYOUTS = 1 << 17
_DTYPE_CODES: dict[Any, int] = {
    key: number << _DTYPE_BIT
    for number, name in enumerate(_DTYPES, 1)
    for key in ((name,) if name == "bfloat16" else (name, np.dtype(name)))
}


def message_signature(num_bytes: int, dtype: "np.dtype[Any] | str", layout: int = 0) -> int:
    """The signature of a message from its bytes, the type of its numbers, if known, and its `layout_code`."""
    return num_bytes | _DTYPE_CODES.get(dtype, 0) | layout << _LAYOUT_BIT


def layout_code(tensors: Sequence[tuple[object, Sequence[int], object]]) -> int:
    """Hash of the tensors that are sent as one message, from the name, shape and type of each: an integer of 17 bits.

    It is not 0, which stands for a message without a layout. Two layouts have the same one with a probability of 1 in
    131071.
    """
    text = repr([(name, tuple(shape), str(dtype)) for name, shape, dtype in tensors])
    return 1 + zlib.crc32(text.encode()) % (_LAYOUTS - 1)


def without_layout(signature: int) -> int:
    """The bytes and the type alone."""
    return signature % (1 << _LAYOUT_BIT)


def bytes_and_dtype(signature: int) -> str:
    """In words, for messages: `1200 bytes of float32`."""
    dtype, num_bytes = divmod(without_layout(signature), 1 << _DTYPE_BIT)
    return f"{num_bytes} bytes" + (f" of {_DTYPES[dtype - 1]}" if dtype else "")
