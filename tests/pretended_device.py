"""A device that this machine lacks: CPU tensors of which it is known whether they would be on a GPU.

Within a `PretendedDevice` a tensor is on the device if it was made with `device=` or moved there by `.to(device)`, or
if it was computed from such tensors. All others are on the host. As with a GPU:

- operations that mix tensors of both are errors, unless that of the host is a single number;
- a copy from one to the other has memory of its own;
- what makes the host wait for the device is recorded with the function of `lockstep` that does it.

Names of devices: a `torch.device` is the pretended device, the string "cpu" is the host.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import lockstep

_SOURCE = str(Path(lockstep.__file__).parent)
_READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_dim"}
"""Operations whose result or its shape the host needs."""
_METHODS = {"cpu", "item", "tolist", "numpy", "nonzero", "__bool__", "__float__", "__int__", "__index__", "__array__"}
"""Methods of a tensor that read it."""
_FACTORIES = {"tensor", "as_tensor", "scalar_tensor"}
"""Functions that copy numbers of the host to the device, and wait for the copy."""


class PretendedDevice:
    """A context in which the device is pretended; see above.

    Attributes:
        waits: how often each function of `lockstep` made the host wait, as "Class.method: operation".
    """

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        self._storages: dict[int, Any] = {}
        self._copies = False
        self._modes = [_Functions(self), _Operations(self)]

    def __enter__(self) -> Self:
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is on the device."""
        return tensor.untyped_storage()._cdata in self._storages

    def take(self, tensor: Tensor) -> Tensor:
        """Let a tensor, and all that share its memory, be on the device."""
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = storage  # kept, so that no other storage gets its address
        return tensor

    def wait(self, operation: str) -> None:
        """Record that the host waits."""
        self.waits[f"{_caller()}: {operation}"] += 1

    # -- functions of Python, before they become operations ----------------------------------------------------------

    def function(self, function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call a function of torch."""
        name = getattr(function, "__name__", "")
        of_device = isinstance(arguments[0], Tensor) and self.holds(arguments[0]) if arguments else False
        if of_device and name == "numpy" and not options.get("force"):
            raise TypeError("can't convert a tensor of the pretended device to numpy; use Tensor.cpu() first")
        if name in ("to", "cpu") or (of_device and name in _METHODS):
            return self._moved(name, function, arguments, options, of_device=of_device)
        made = self._uncounted(function, arguments, options) if name in _FACTORIES else function(*arguments, **options)
        if isinstance(options.get("device"), torch.device) and isinstance(made, Tensor) and not self.holds(made):
            self.take(made)
            if name in _FACTORIES:
                self.wait(name)
        if name == "new_tensor" and of_device:
            self.wait(name)
            self.take(made)
        return made

    def _moved(self, name: str, function: Any, arguments: Any, options: Any, *, of_device: bool) -> Any:
        """Move a tensor to the device or to the host, or read it."""
        given = [value for value in (*arguments[1:], options.get("device")) if isinstance(value, str | torch.device)]
        result = self._uncounted(function, arguments, options)
        if name == "to" and (not given or isinstance(given[0], torch.device)):
            if not given:
                return self.take(result) if of_device else result
            if not of_device:
                if not options.get("non_blocking"):
                    self.wait("copy to the device")
                result = self._separate(result, arguments[0])
            return self.take(result)
        if of_device:
            self.wait(name)
            return self._separate(result, arguments[0])
        return result

    def _separate(self, result: Any, source: Tensor) -> Any:
        """The result of a copy, which may have been none, in memory of its own."""
        if not isinstance(result, Tensor) or result.untyped_storage()._cdata != source.untyped_storage()._cdata:
            return result
        return self._uncounted(torch.clone, (result,), {})

    def _uncounted(self, function: Any, arguments: Any, options: Any) -> Any:
        self._copies, before = True, self._copies
        try:
            return function(*arguments, **options)
        finally:
            self._copies = before

    # -- operations, also those of backward passes -------------------------------------------------------------------

    def operation(self, operation: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Run an operation of torch."""
        if self._copies:
            return operation(*arguments, **options)
        name = operation.overloadpacket.__name__
        given = list(_tensors((arguments, options)))
        if not any(self.holds(tensor) for tensor in given):
            return operation(*arguments, **options)
        if name in _READS:
            self.wait(name)
            result = operation(*arguments, **options)
            return self._all_on_device(result) if isinstance(result, Tensor | tuple) else result
        if name == "copy_":
            if len({self.holds(tensor) for tensor in given}) > 1 and not (len(arguments) > 2 and arguments[2]):
                self.wait("copy_")
            return operation(*arguments, **options)
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            self._check_index(name, [index for index in arguments[1] if index is not None])
        elif any(tensor.ndim > 0 and tensor.numel() and not self.holds(tensor) for tensor in given):
            raise RuntimeError(f"{_caller()}: {name} mixes tensors of the device with tensors of the host")
        return self._all_on_device(operation(*arguments, **options))

    def _check_index(self, name: str, indices: list[Tensor]) -> None:
        """Masks are turned into indices, and indices of the host are copied."""
        for index in indices:
            if index.dtype in (torch.bool, torch.uint8):
                self.wait(f"{name} by a mask")
            elif index.numel() and not self.holds(index):
                self.wait(f"{name} by numbers of the host")

    def _all_on_device(self, result: Any) -> Any:
        for tensor in _tensors(result):
            self.take(tensor)
        return result


class _Functions(TorchFunctionMode):
    def __init__(self, device: PretendedDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._device.function(func, args, kwargs or {})


class _Operations(TorchDispatchMode):
    def __init__(self, device: PretendedDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._device.operation(func, args, kwargs or {})


def _tensors(nested: Any) -> Iterator[Tensor]:
    leaves: Iterable[Any] = tree_leaves(nested)
    return (leaf for leaf in leaves if isinstance(leaf, Tensor))


def _caller() -> str:
    """The innermost function of `lockstep` that is running."""
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith(_SOURCE):
        frame = frame.f_back
    return "test" if frame is None else frame.f_code.co_qualname
