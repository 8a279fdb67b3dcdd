"""CUDA graphs without a GPU: a tape of operations that reads and writes the memory of its recording.

As with a CUDA graph, Python does not run when the tape is launched: its numbers, its branches and the tensors that it
chose are those of the recording, recording has no effects, and an operation whose result the host needs is an error.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lockstep.torch import capture

_READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2"}


class TapeGraphs:
    """Stands in for `lockstep.torch.capture.CudaGraphs`."""

    def warm_up(self, function: Callable[[], Any]) -> Any:
        return function()

    def capture(
        self, function: Callable[[], Any], generators: Sequence[torch.Generator] = ()
    ) -> tuple[Callable[[], None], Any]:
        states = [generator.get_state() for generator in generators]
        tape = _Tape()
        with tape:
            result = function()
        tape.undo()
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        return tape.launch, result


def record_graphs(monkeypatch: pytest.MonkeyPatch) -> list[capture.CapturedStep[Any]]:
    """Let steps be captured as on a GPU; returns all that will be."""
    made: list[capture.CapturedStep[Any]] = []

    class Recorded(capture.CapturedStep[Any]):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            made.append(self)

    monkeypatch.setattr(capture, "graphs_on", lambda device: TapeGraphs())
    monkeypatch.setattr(capture, "CapturedStep", Recorded)
    return made


class _Operation(NamedTuple):
    function: Any
    arguments: Any
    options: Any
    results: list[Tensor]


class _Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._operations: list[_Operation] = []
        self._made: dict[int, Any] = {}
        """Memory of tensors that the recorded function made."""
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        """All of a tensor's memory that was there before, and a copy of it before its first change."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func.overloadpacket.__name__ in _READS:
            raise RuntimeError("operation not permitted when stream is capturing")
        for argument, value in _given(func, args, options):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in _tensors(value):
                    self._keep(tensor)
        read = {_memory(tensor) for tensor in _tensors((args, options))}
        result = func(*args, **options)
        results = _tensors(result)
        self._operations.append(_Operation(func, args, options, [t for t in results if _memory(t) not in read]))
        for tensor in results:
            if _memory(tensor) not in read:
                self._made[_memory(tensor)] = tensor.untyped_storage()
        return result

    def undo(self) -> None:
        """Undo the effects of the recording."""
        for tensor, before in self._before.values():
            tensor.copy_(before)

    @torch.no_grad()
    def launch(self) -> None:
        """Run all operations again, on the same memory."""
        for function, arguments, options, results in self._operations:
            again = function(*arguments, **options)
            if results:
                for old, new in zip(results, _tensors(again), strict=True):
                    old.copy_(new)

    def _keep(self, tensor: Tensor) -> None:
        if _memory(tensor) in self._made or _memory(tensor) in self._before:
            return
        storage = tensor.untyped_storage()
        whole = torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (storage.nbytes() // tensor.element_size(),))
        self._before[_memory(tensor)] = whole, whole.clone()


def _given(function: Any, arguments: Any, options: Any) -> list[tuple[Any, Any]]:
    """Arguments of the schema, with their values."""
    schema = function._schema.arguments
    return [*zip(schema, arguments, strict=False), *((a, options[a.name]) for a in schema if a.name in options)]


def _tensors(nested: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(nested) if isinstance(leaf, Tensor)]


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
