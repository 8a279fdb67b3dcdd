"""The replicated state of PPO as a pytree, and its names in checkpoints."""

from collections.abc import Mapping
from typing import NamedTuple, Self, cast

import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.jax.adam import AdamState
from lockstep.jax.flat import FlatParameters, Params, subtree, with_prefix


class State(NamedTuple):
    """Parameters, optimizer state, metrics and flags."""

    params: Array
    """All parameters of the policy [P], in the order of `FlatParameters`."""
    optimizer: AdamState
    learning_rate: Array
    table: Array
    """Metric sums and weights [2, names]; see `Metrics`."""
    non_finite: Array
    """Whether a number was not finite and the run must stop; all later steps are skipped."""
    past_target_kl: Array
    """Whether this update's KL exceeded `target_kl`: no later step of it is taken."""

    @classmethod
    def start(cls, params: Array, optimizer: AdamState, learning_rate: float, table: Array | np.ndarray) -> Self:
        """Before the first update."""
        no = jnp.zeros((), bool)
        return cls(params, optimizer, jnp.asarray(learning_rate, jnp.float32), jnp.asarray(table), no, no)

    def named(self, flat: FlatParameters) -> dict[str, np.ndarray]:
        """The state as host arrays by checkpoint name; torch uses the same names."""
        named = with_prefix("policy", flat.split(self.params)) | with_prefix("optimizer", self.optimizer._asdict())
        named |= {"learning_rate": self.learning_rate, "metrics": self.table}
        return {name: np.asarray(array) for name, array in named.items()}

    def loaded(self, flat: FlatParameters, arrays: Mapping[str, np.ndarray]) -> Self:
        """The state with the entries of `arrays`, named as in `named`, replaced; on the host."""
        merged = {name: np.asarray(arrays.get(name, old), old.dtype) for name, old in self.named(flat).items()}
        named = cast(Params, merged)  # numpy arrays, for `Comm.replicate`
        params, optimizer = flat.join(subtree(named, "policy")), AdamState(**subtree(named, "optimizer"))
        return self._replace(
            params=params, optimizer=optimizer, learning_rate=named["learning_rate"], table=named["metrics"]
        )
