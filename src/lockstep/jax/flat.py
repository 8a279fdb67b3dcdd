"""Parameters by name, and all of them as one vector: one gradient is one row, one norm and one optimizer step."""

import math
from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Params = dict[str, Array]
"""Parameters by name: the names, shapes and layouts of torch's `state_dict`. Arrays of numpy will do as well."""


class FlatParameters:
    """How parameters lie in one vector of P numbers: one after another, in the order of their names.

    Args:
        params: what to learn of; their values do not matter.

    Attributes:
        shapes: by name, in that order.
        num_parameters: P.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        for name, value in params.items():
            if value.dtype != np.float32:
                raise ValueError(f"{name} is {value.dtype}; parameters of type float32 are needed")
        self.shapes: dict[str, tuple[int, ...]] = {name: tuple(params[name].shape) for name in sorted(params)}
        self._sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.num_parameters = sum(self._sizes)

    @property
    def names(self) -> list[str]:
        """In the order of the vector."""
        return list(self.shapes)

    def join(self, params: Mapping[str, Any]) -> Array:
        """Parameters, or their gradients, as one vector [P]; of numpy's arrays one of numpy's."""
        parts = [params[name].reshape(-1) for name in self.shapes]
        if all(isinstance(part, np.ndarray) for part in parts):
            return cast(Array, np.concatenate(parts))
        return jnp.concatenate(parts)

    def split(self, vector: Array) -> Params:
        """The parts of a vector [P] by name, and as the parameters are shaped; of a numpy array they are views."""
        if isinstance(vector, np.ndarray):
            places = [int(place) for place in np.cumsum(self._sizes)[:-1]]
            parts = cast("list[Array]", np.split(vector, places))
        else:
            # Not slices: the gradient of this one is a concatenation, theirs are as many sums of P numbers.
            parts = jax.lax.split(vector, self._sizes)
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}


def part(params: Mapping[str, Array], name: str) -> Params:
    """What lies below a name, without it: of `a.b.c` and `a` it is `b.c`."""
    prefix = name + "."
    return {key.removeprefix(prefix): value for key, value in params.items() if key.startswith(prefix)}


def below(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `part`."""
    return {f"{name}.{key}": value for key, value in params.items()}


def divisor(weight: Array) -> Array:
    """`weight`, but 1 where it is 0: a sum of nothing divided by it stays 0."""
    return jnp.where(weight == 0, 1.0, weight)
