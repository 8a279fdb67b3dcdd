"""Conversion between parameters by name and one flat vector, for a single message, norm and optimizer step."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Params = dict[str, Array]
"""Parameters by name, with the names, shapes and layouts of torch's `state_dict`; jax or numpy arrays."""


class FlatParameters:
    """The layout of parameters in one vector of P numbers, sorted by name.

    Args:
        params: give names and shapes; their values are not used.
        first: networks whose parameters precede all others, in this order.

    Attributes:
        shapes: by name, in the order of the vector.
        num_parameters: P.
    """

    def __init__(self, params: Mapping[str, Any], first: Sequence[str] = ()) -> None:
        for name, value in params.items():
            if value.dtype != np.float32:
                raise ValueError(f"{name} is {value.dtype}; parameters of type float32 are needed")
        prefixes = [f"{name}." for name in first]

        def place(name: str) -> tuple[int, str]:
            return next((i for i, prefix in enumerate(prefixes) if name.startswith(prefix)), len(prefixes)), name

        names = sorted(params, key=place)
        self.shapes: dict[str, tuple[int, ...]] = {name: tuple(params[name].shape) for name in names}
        self._sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.num_parameters = sum(self._sizes)

    def join(self, params: Mapping[str, Any]) -> Array:
        """Parameters or their gradients as one vector [P]; a numpy array if all are."""
        parts = [params[name].reshape(-1) for name in self.shapes]
        if all(isinstance(part, np.ndarray) for part in parts):
            return cast(Array, np.concatenate(parts))
        return jnp.concatenate(parts)

    def split(self, vector: Array) -> Params:
        """The parameters by name and shape, from a vector [P]; views of a numpy array."""
        if isinstance(vector, np.ndarray):
            offsets = [int(offset) for offset in np.cumsum(self._sizes)[:-1]]
            parts = cast("list[Array]", np.split(vector, offsets))
        else:
            # The gradient of `split` is one concatenation; that of slices would be many sums of P numbers.
            parts = jax.lax.split(vector, self._sizes)
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}


def subtree(params: Mapping[str, Array], name: str) -> Params:
    """The parameters below a name, without that prefix: `a.b.c` becomes `b.c` for `a`."""
    prefix = name + "."
    return {key.removeprefix(prefix): value for key, value in params.items() if key.startswith(prefix)}


def with_prefix(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `subtree`."""
    return {f"{name}.{key}": value for key, value in params.items()}


def divisor(weight: Array) -> Array:
    """`weight` with 0 replaced by 1, so that an empty sum divided by it stays 0."""
    return jnp.where(weight == 0, 1.0, weight)
