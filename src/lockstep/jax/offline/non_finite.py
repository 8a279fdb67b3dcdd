"""How `lockstep.session.non_finite` reads logged rows and computes a loss of some of them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.data.columns import Ragged
from lockstep.data.rows import Rows
from lockstep.jax.offline.batch import Part
from lockstep.jax.offline.optimizer import OfflineOptimizer

RowsAndPart = tuple[Rows, Part]
"""A shard's rows, as they were read and as they are learned from."""


class OfflineLossReader:
    """The `lockstep.session.non_finite.LossReader` of logged data.

    Args:
        optimizer: with the parameters before the step.
    """

    def __init__(self, optimizer: OfflineOptimizer) -> None:
        state = optimizer.comm.local(optimizer.state)
        end = optimizer.flat.num_parameters

        def is_finite(part: Part) -> Array:
            gradient, sums = jnp.split(optimizer.shard_sums(state, part, jnp.zeros(0, jnp.float32)), [end])
            return jnp.isfinite(jnp.square(gradient).sum()) & jnp.isfinite(sums).all()

        self._is_finite = jax.jit(is_finite)

    def arrays(self, batch: RowsAndPart) -> dict[str, np.ndarray]:
        """Columns by name, as `batch.*`."""
        rows = batch[0]
        columns = {name: getattr(rows, name) for name in Rows.__dataclass_fields__}
        return {f"batch.{name}": column for name, column in columns.items() if not isinstance(column, Ragged)}

    def is_finite(self, batch: RowsAndPart, first: int, count: int) -> bool:
        """Whether loss and gradient of these rows are finite; all others become rows of zeros."""

        def rows(column: Any) -> np.ndarray:
            filled = np.zeros_like(column)
            filled[:count] = column[first : first + count]
            return filled

        return bool(self._is_finite(jax.tree.map(rows, batch[1])))
