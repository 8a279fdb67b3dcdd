"""Tracing a policy: what is left of it needs neither Lockstep nor Python."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from lockstep.errors import RunError

_LONGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Program:
    """A traced module, and the names of what goes in and comes out."""

    exported: ExportedProgram
    axes: Mapping[str, str]
    """What the first axis of each input counts; it may have any length from 1."""
    outputs: tuple[str, ...]


def trace(
    module: nn.Module, examples: Mapping[str, Tensor], axes: Mapping[str, str], outputs: tuple[str, ...]
) -> Program:
    """Trace a module on the CPU.

    Args:
        module: takes inputs by name and returns a dictionary.
        examples: of its inputs; an axis that may have any length needs at least 2 here.
        axes: what the first axis of each input counts.
        outputs: the keys of what it returns, in order.

    Raises:
        RunError: it does what cannot be traced, such as numpy, or decisions by the numbers in a tensor.
    """
    module = module.eval().requires_grad_(requires_grad=False)
    dims = {axis: Dim(axis, min=1, max=_LONGEST) for axis in axes.values()}
    shapes: dict[str, Any] = {name: {0: dims[axes[name]]} for name in examples}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch's about its own parts
        try:
            exported = torch.export.export(module, (), dict(examples), dynamic_shapes=shapes)
        except Exception as error:  # whatever a network of the user's own does
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise RunError(
                f"the network cannot be traced by torch.export, so there is no file of it: {reason}"
            ) from error
    for node in exported.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    return Program(exported, axes, outputs)
