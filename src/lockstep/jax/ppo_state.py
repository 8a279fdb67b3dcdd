"""What PPO changes: a pytree of arrays that are equal on all ranks, and its names in checkpoints."""

from collections.abc import Mapping
from typing import NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.jax.adam import AdamState
from lockstep.jax.flat import FlatParameters


class State(NamedTuple):
    """Of the policy and of its optimizer, and what is told of updates."""

    values: Array
    """All parameters of the policy [P], as `FlatParameters` orders them."""
    optimizer: AdamState
    learning_rate: Array
    table: Array
    """Of the metrics, [2, names]."""
    halted: Array
    """Whether a number was not finite, where the run is to stop then: no step is taken any more."""
    stopped: Array
    """Whether this update's KL exceeded `target_kl`: the rest of its steps is computed, and nothing of them kept."""

    @classmethod
    def start(cls, values: Array, optimizer: AdamState, learning_rate: float, table: Array) -> Self:
        """Before the first update."""
        no = jnp.zeros((), bool)
        return cls(values, optimizer, jnp.asarray(learning_rate, jnp.float32), table, no, no)

    def named(self, flat: FlatParameters) -> dict[str, np.ndarray]:
        """The arrays of a state on the host, by names that are those of the other backend."""
        named = {f"policy.{name}": array for name, array in flat.split(self.values).items()}
        named |= {f"optimizer.{name}": array for name, array in self.optimizer._asdict().items()}
        named |= {"learning_rate": self.learning_rate, "metrics": self.table}
        return {name: np.asarray(array) for name, array in named.items()}

    def loaded(self, flat: FlatParameters, arrays: Mapping[str, np.ndarray]) -> Self:
        """The same state, but for what `arrays` has by the names of `named`; on the host."""
        held = {name: np.asarray(arrays.get(name, old), old.dtype) for name, old in self.named(flat).items()}
        values = flat.join({name: held[f"policy.{name}"] for name in flat.names})
        optimizer = AdamState(*(jnp.asarray(held[f"optimizer.{name}"]) for name in AdamState._fields))
        rate, table = jnp.asarray(held["learning_rate"]), jnp.asarray(held["metrics"])
        return self._replace(values=values, optimizer=optimizer, learning_rate=rate, table=table)
