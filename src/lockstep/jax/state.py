"""What outlives an update of a learner, as `lockstep.session.run_state` knows it: arrays of the host."""

from collections.abc import Mapping
from typing import Any, Protocol

import jax
import numpy as np

from lockstep.jax.comm import Comm


class Learner(Protocol):
    """An algorithm, as far as what outlives an update is concerned."""

    @property
    def state(self) -> Any:
        """A pytree of what an update changes on the devices; the same on all."""
        ...

    def shared_arrays(self) -> dict[str, np.ndarray]:
        """Copies on the host of everything that is equal on all ranks, named as `lockstep.torch` names the same.

        Parameters, optimizer, normalizers, learning rate, sums of metrics.
        """
        ...

    def load_shared(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on with what `shared_arrays` told; the policy's parameters are those, too."""
        ...

    def shard_state(self, k: int) -> dict[str, Any]:
        """What belongs to local shard number `k` alone: random streams, accumulators. Plain values and numpy arrays."""
        ...

    def restore_shard(self, k: int, state: dict[str, Any]) -> None:
        """Continue local shard number `k` from what `shard_state` told."""
        ...


class InArrays:
    """A learner as `lockstep.session.run_state` knows it."""

    def __init__(self, learner: Learner, comm: Comm) -> None:
        self._learner, self._comm = learner, comm
        self.shared_arrays, self.load_shared = learner.shared_arrays, learner.load_shared
        self.shard_state, self.restore_shard = learner.shard_state, learner.restore_shard

    def proof(self) -> dict[str, Any]:
        """What this process holds, by name; and what each of its devices holds, where it drives several.

        Nothing in a world of one device: there is nobody to compare it with, and reading it takes time.
        """
        if self._comm.world.size * len(self._comm.devices) == 1:
            return {}
        named: dict[str, Any] = {**self._learner.shared_arrays()}
        if len(self._comm.devices) > 1:
            for path, leaf in jax.tree_util.tree_leaves_with_path(self._learner.state):
                named[f"state{jax.tree_util.keystr(path)}"] = leaf
        return named
