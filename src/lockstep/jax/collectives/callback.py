"""Numpy functions as operations of compiled code on CPUs, through XLA's foreign function interface (FFI).

`jax.pure_callback` does the same by way of Python objects on both sides and several times the delay. Here XLA's call
frame (xla/ffi/api/c_api.h, of which only the stable first fields are read) is opened with `ctypes`, and the function
accesses the memory of its inputs and output. No compiler is needed; `native` is faster where there is one.
"""

import ctypes
import itertools
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any, cast

import jax
import numpy as np
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from lockstep.errors import ConfigError
from lockstep.jax.collectives import native

_METADATA, _EXECUTE, _INTERNAL = 1, 3, 13
_DTYPES = {11: np.dtype(np.float32), 4: np.dtype(np.int32), 8: np.dtype(np.uint32), 1: np.dtype(np.bool_)}
_numbers = itertools.count()


class _Extension(Structure):
    pass


_Extension._fields_ = [("size", c_size_t), ("type", c_int), ("next", POINTER(_Extension))]


class _Version(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("major", c_int), ("minor", c_int)]


class _Metadata(Structure):
    _fields_ = [("size", c_size_t), ("version", _Version), ("traits", c_uint32), ("state_type", c_int64)]


class _MetadataExtension(Structure):
    _fields_ = [("base", _Extension), ("metadata", POINTER(_Metadata))]


class _Buffer(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extension", c_void_p),
        ("dtype", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    ]


class _Buffers(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extension", c_void_p),
        ("count", c_int64),
        ("types", c_void_p),
        ("buffers", POINTER(POINTER(_Buffer))),
    ]


class _ErrorArguments(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("message", c_char_p), ("code", c_int)]


_CreateError = ctypes.CFUNCTYPE(c_void_p, POINTER(_ErrorArguments))


class _Api(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extension", c_void_p),
        ("version", _Version),
        ("internal", c_void_p),
        ("create_error", _CreateError),
    ]


class _Frame(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extension", POINTER(_Extension)),
        ("api", POINTER(_Api)),
        ("context", c_void_p),
        ("stage", c_int),
        ("arguments", _Buffers),
        ("results", _Buffers),
    ]


_Handler = ctypes.CFUNCTYPE(c_void_p, POINTER(_Frame))


class Callback:
    """A function of numpy arrays as an operation of compiled code.

    `error` holds the exception that the function raised; XLA propagates only its message.

    Args:
        name: for profiles and errors.
        function: called with the input [n] or [rows, n] and the output to fill, both views of XLA's memory.
    """

    def __init__(self, name: str, function: Callable[[np.ndarray, np.ndarray], None]) -> None:
        self.error: BaseException | None = None
        self._function = function
        self._target = f"lockstep_{name}_{next(_numbers)}"
        self._handler = _Handler(self._handle)
        _registered.append(self)
        jax.ffi.register_ffi_target(self._target, jax.ffi.pycapsule(self._handler), platform="cpu")
        self._native_sum: native.NativeSum | None = None

    def use_native(self, make: Callable[[int, int], native.NativeSum | None], wait: Callable[[], None]) -> None:
        """Call C code instead where it is available.

        Args:
            make: returns the C call, given the addresses of two handlers: the function, and `wait`.
            wait: called by the C code when other ranks take long to arrive.
        """
        self._wait_handler = _Handler(lambda address: self._report_errors(address.contents, wait))
        self._native_sum = make(_address(self._handler), _address(self._wait_handler))

    def take_native_calls(self) -> int:
        """The number of calls made in C since the last call."""
        return 0 if self._native_sum is None else self._native_sum.take_native_calls()

    def __call__(self, value: Array, shape: tuple[int, ...], after: Sequence[Array] = ()) -> Array:
        """The function's output [*shape], of the input's type; inside compiled code. It waits until `after` exist."""
        if value.dtype not in _DTYPES.values():
            raise TypeError(f"{value.dtype} cannot be sent between ranks; send float32 or int32")
        target, number = (self._target, None) if self._native_sum is None else (native.TARGET, self._native_sum.number)
        return cast(Array, _call.bind(value, *after, target=target, shape=shape, number=number))

    def _handle(self, address: Any) -> int | None:
        frame = address.contents
        if frame.extension and frame.extension.contents.type == _METADATA:
            metadata = ctypes.cast(frame.extension, POINTER(_MetadataExtension)).contents.metadata.contents
            metadata.version.major, metadata.version.minor = native.API
            return None
        if frame.stage != _EXECUTE:
            return None
        return self._report_errors(frame, lambda: self._function(_array(frame.arguments), _array(frame.results)))

    def _report_errors(self, frame: Any, act: Callable[[], None]) -> int | None:
        """Run `act`; returns the address of an XLA error if it raises."""
        try:
            act()
        except BaseException as error:
            self.error = error
            text = f"{type(error).__name__}: {error}".encode()
            made = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, text, _INTERNAL)
            return frame.api.contents.create_error(ctypes.byref(made))
        return None


def _output(value: Any, *after: Any, target: str, shape: tuple[int, ...], number: int | None) -> Any:
    return cast(Any, jax).core.ShapedArray(shape, value.dtype)


def _lower(context: Any, *values: Any, target: str, shape: tuple[int, ...], number: int | None) -> Any:
    attributes = {} if number is None else {"number": np.int64(number)}
    return cast(Any, jax.ffi.ffi_lowering(target, has_side_effect=True))(context, *values, **attributes)


def _refuse_vmap(*_values: Any, **_options: Any) -> Any:
    raise ConfigError(
        "a collective was called inside jax.vmap, where the processes cannot exchange arrays; call it outside of vmap, "
        "once, with the whole array"
    )


# `jax.ffi.ffi_call` with a side effect makes JAX dispatch every call in Python, which takes several times as long. Here
# only XLA sees the side effect, which is enough to keep it from dropping or merging calls.
_call = Primitive("lockstep_callback")
_call.def_abstract_eval(_output)
mlir.register_lowering(_call, _lower, platform="cpu")
batching.primitive_batchers[_call] = _refuse_vmap

_registered: list[Callback] = []  # never freed: XLA may keep compiled code that refers to a handler


def _address(handler: Any) -> int:
    return cast(int, ctypes.cast(handler, c_void_p).value)


def _array(buffers: Any) -> np.ndarray:
    """A view of the first buffer."""
    buffer = buffers.buffers[0].contents
    kind = _DTYPES[buffer.dtype]
    shape = buffer.dims[: buffer.rank]
    size = kind.itemsize
    for length in shape:
        size *= length
    if not size:
        return np.empty(shape, kind)
    return np.frombuffer(cast(Any, (ctypes.c_char * size).from_address(buffer.data)), kind).reshape(shape)
