"""How `lockstep.session.non_finite` reads JAX's arrays and computes a loss of some rows."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.jax.batch import Batch
from lockstep.jax.transitions import ActorCriticPart, Part

SomeRows = TypeVar("SomeRows", Batch, Part, ActorCriticPart)


class LossReader(Generic[SomeRows]):
    """The `lockstep.session.non_finite.LossReader` of JAX. Batches are on the host.

    Args:
        sums: gradient sum [P] and other sums of `size` rows.
        size: fewer rows are filled up with rows of zeros, so that one compilation serves all.
    """

    def __init__(self, sums: Callable[[SomeRows], Sequence[Array]], size: int) -> None:
        def is_finite(batch: SomeRows) -> Array:
            gradient, others = sums(batch)
            return jnp.isfinite(jnp.square(gradient).sum()) & jnp.isfinite(others).all()

        self._is_finite = jax.jit(is_finite)
        self._size = size

    def arrays(self, batch: SomeRows) -> dict[str, np.ndarray]:
        """Columns by name, as `batch.*`."""
        columns = batch if isinstance(batch, Batch) else batch.batch
        named = columns._asdict().items()
        return {f"batch.{name}": np.asarray(column) for name, column in named if column is not None}

    def is_finite(self, batch: SomeRows, first: int, count: int) -> bool:
        """Whether loss and gradient of these rows are finite."""

        def rows(column: Any) -> np.ndarray:
            filled = np.zeros((self._size, *column.shape[1:]), column.dtype)
            filled[:count] = column[first : first + count]
            return filled

        if isinstance(batch, Batch):
            part = jax.tree.map(rows, batch)
        else:
            part = batch._replace(batch=jax.tree.map(rows, batch.batch))
        return bool(self._is_finite(part))
