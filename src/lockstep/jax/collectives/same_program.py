"""The check that the compiled programs of all processes call the same collectives.

Gloo and NCCL compare neither shapes nor types. Ranks whose programs differ would mix their numbers, be aborted, or wait
for each other until the timeout.
"""

import json
from collections.abc import Generator, Hashable
from itertools import zip_longest
from typing import Any, cast

import jax
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr

from lockstep.distributed import agreement, peers
from lockstep.distributed.signature import message_signature
from lockstep.errors import RunError
from lockstep.jax.collectives.mesh import AXIS, Tree
from lockstep.jax.collectives.processes import Processes

LAYOUT_MARK = "#"
"""Separates the name of a collective from the `layout_code` of its arrays, in the name of a scope."""
Collective = tuple[str, int]
"""The name of a collective and the signature of the message that each device sends."""


class SameProgram:
    """Compare a compiled function with those of the other processes before each call.

    In each call, not in each compilation: a process may compile alone, as for inputs of another shape.

    Args:
        compiled: a function of `jax.jit`.
        name: of the function, for messages.
        processes: all of them, connected.
    """

    def __init__(self, compiled: Any, name: str, processes: Processes) -> None:
        self._compiled, self._name, self._processes = compiled, name, processes
        self._programs: dict[Hashable, tuple[list[Collective], np.ndarray]] = {}
        """The collectives of the program for each type of inputs, and their digest."""

    def check(self, shared: Tree, own: Tree) -> None:
        """Raise `RunError`, naming the first collective that differs and its ranks; *collective*, one small message."""
        inputs = _types((shared, own))
        if inputs not in self._programs:  # the call that follows uses this trace again
            program = list(_collectives(self._compiled.trace(shared, own).jaxpr.jaxpr))
            digest = agreement.content_digest(json.dumps(program).encode())
            self._programs[inputs] = program, np.frombuffer(bytes.fromhex(digest), np.int64)
        program, digest = self._programs[inputs]
        if (self._processes.gather(digest, self._name) != digest).any():
            raise RunError(self._first_difference(self._processes.gather_object(program, self._name)))

    def _first_difference(self, programs: list[list[Collective]]) -> str:
        end = (f"the end of {self._name}", 0)
        for every in zip_longest(*programs, fillvalue=end):
            tag, signature = every[self._processes.rank]
            if others := [(rank, *theirs) for rank, theirs in enumerate(every) if tuple(theirs) != (tag, signature)]:
                return peers.different_collectives(self._processes.rank, tag, signature, others)
        raise AssertionError("programs with different digests call the same collectives")


def _types(inputs: Tree) -> Hashable:
    """What decides whether `jax.jit` traces a function anew."""
    leaves, structure = cast(Any, jax.tree.flatten(inputs))
    return structure, *(leaf.aval if isinstance(leaf, Array) else jax.typeof(leaf) for leaf in leaves)


def _collectives(program: Jaxpr) -> Generator[Collective]:
    """The collectives of a program in its order, those of loops and branches included.

    Their names are those of `jax.named_scope`, or of the operation.
    """
    for equation in program.eqns:
        axes = equation.params.get("axis_name") or equation.params.get("axes") or ()
        if equation.invars and AXIS in (axes if isinstance(axes, tuple) else (axes,)):
            scope = str(equation.source_info.name_stack).rsplit("/", 1)[-1] or str(equation.primitive)
            name, _, layout = scope.partition(LAYOUT_MARK)
            message = cast(Any, equation.invars[0].aval)
            yield name, message_signature(message.size * message.dtype.itemsize, message.dtype.name, int(layout or 0))
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                if isinstance(part, ClosedJaxpr | Jaxpr):
                    yield from _collectives(part.jaxpr if isinstance(part, ClosedJaxpr) else part)
