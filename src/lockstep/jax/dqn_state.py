"""What gradient steps of DQN change: a pytree of arrays that are equal on all ranks, and its names in checkpoints."""

from collections.abc import Mapping
from typing import NamedTuple, Self, cast

import numpy as np
from jax import Array

from lockstep.jax.adam import AdamState
from lockstep.jax.flat import FlatParameters, Params, below, part


class State(NamedTuple):
    """Of both networks and of the optimizer, and what is told of gradient steps."""

    values: Array
    """All parameters of the network that learns [P], as `FlatParameters` orders them."""
    target: Array
    """Those of the target network [P]."""
    optimizer: AdamState
    learning_rate: Array
    sums: Array
    """Of the gradient steps since the last rollout: rows, sums over them, norms, and how many steps were left out."""

    def named(self, flat: FlatParameters) -> dict[str, np.ndarray]:
        """The arrays of a state on the host, by names that are those of the other backend."""
        named = below("policy", flat.split(self.values)) | below("optimizer", self.optimizer._asdict())
        named |= below("target", flat.split(self.target)) | {"learning_rate": self.learning_rate}
        return {name: np.asarray(array) for name, array in named.items()}

    def loaded(self, flat: FlatParameters, arrays: Mapping[str, np.ndarray]) -> Self:
        """The same state, but for what `arrays` has by the names of `named`; on the host."""
        held = {name: np.asarray(arrays.get(name, old), old.dtype) for name, old in self.named(flat).items()}
        named = cast(Params, held)  # of numpy, for `Comm.share`
        values, target = (flat.join(part(named, network)) for network in ("policy", "target"))
        optimizer = AdamState(**part(named, "optimizer"))
        return self._replace(values=values, target=target, optimizer=optimizer, learning_rate=named["learning_rate"])
