"""Tracing a policy with torch.export. The traced program needs neither Lockstep nor Python."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from lockstep.errors import RunError

_MAX_LENGTH = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Program:
    """A traced module, and the names of its inputs and outputs."""

    exported: ExportedProgram
    axes: Mapping[str, str]
    """The name of the first axis of each input. That axis may have any length from 1."""
    outputs: tuple[str, ...]


def trace(
    module: nn.Module, examples: Mapping[str, Tensor], axes: Mapping[str, str], outputs: tuple[str, ...]
) -> Program:
    """Trace a module on the CPU.

    Args:
        module: takes inputs by name and returns a dictionary.
        examples: example inputs; the first axis of each needs a length of at least 2.
        axes: the name of the first axis of each input.
        outputs: the keys of the returned dictionary, in order.

    Raises:
        RunError: the module cannot be traced, for example because it calls numpy or branches on the values of a tensor.
    """
    module = module.eval().requires_grad_(requires_grad=False)
    dims = {axis: Dim(axis, min=1, max=_MAX_LENGTH) for axis in axes.values()}
    shapes: dict[str, Any] = {name: {0: dims[axes[name]]} for name in examples}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # from torch's own modules
        try:
            exported = torch.export.export(module, (), dict(examples), dynamic_shapes=shapes)
        except Exception as error:  # a user's network may raise anything
            raise RunError(
                f"the network cannot be traced by torch.export, so there is no file of it: {_reason(error)}"
            ) from error
    for node in exported.graph.nodes:
        node.meta.pop("stack_trace", None)  # it contains paths of this machine
    return Program(exported, axes, outputs)


def _reason(error: Exception) -> str:
    """Why a module cannot be traced, in one line."""
    if "specialized it to be a constant" in str(error):  # not in its first line
        return "its forward takes the number of rows as a constant, as len(x) and int(...) do; use x.shape[0]"
    return (str(error).strip() or type(error).__name__).splitlines()[0]
