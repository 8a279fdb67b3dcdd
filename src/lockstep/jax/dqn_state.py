"""The replicated state of DQN as a pytree, and its names in checkpoints."""

from collections.abc import Mapping
from typing import NamedTuple, Self, cast

import numpy as np
from jax import Array

from lockstep.jax.adam import AdamState
from lockstep.jax.flat import FlatParameters, Params, below, part


class State(NamedTuple):
    """Parameters of both networks, optimizer state and metric sums."""

    values: Array
    """All parameters of the online network [P], in the order of `FlatParameters`."""
    target: Array
    """All parameters of the target network [P]."""
    optimizer: AdamState
    learning_rate: Array
    sums: Array
    """Over the gradient steps since the last rollout: rows, metric sums, gradient norms, skipped steps."""

    def named(self, flat: FlatParameters) -> dict[str, np.ndarray]:
        """The state as host arrays by checkpoint name; torch uses the same names."""
        named = below("policy", flat.split(self.values)) | below("optimizer", self.optimizer._asdict())
        named |= below("target", flat.split(self.target)) | {"learning_rate": self.learning_rate}
        return {name: np.asarray(array) for name, array in named.items()}

    def loaded(self, flat: FlatParameters, arrays: Mapping[str, np.ndarray]) -> Self:
        """The state with the entries of `arrays`, named as in `named`, replaced; on the host."""
        merged = {name: np.asarray(arrays.get(name, old), old.dtype) for name, old in self.named(flat).items()}
        named = cast(Params, merged)  # numpy arrays, for `Comm.replicate`
        values, target = (flat.join(part(named, network)) for network in ("policy", "target"))
        optimizer = AdamState(**part(named, "optimizer"))
        return self._replace(values=values, target=target, optimizer=optimizer, learning_rate=named["learning_rate"])
