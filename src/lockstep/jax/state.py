"""Adapts a learner's device state to checkpoints, which hold host arrays (`lockstep.session.run_state`)."""

from collections.abc import Mapping
from typing import Any, Protocol

import jax
import numpy as np

from lockstep.jax.comm import Comm
from lockstep.session.run_state import ShardStates, check_methods


class Learner(ShardStates, Protocol):
    """The persistent state of an algorithm."""

    @property
    def state(self) -> Any:
        """The pytree that updates change, replicated on all devices."""
        ...

    def shared_arrays(self) -> dict[str, np.ndarray]:
        """Host copies of all state that is equal on every rank, with the same names as in `lockstep.torch`.

        Parameters, optimizer, normalizers, learning rate, metric sums.
        """
        ...

    def load_shared(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Load what `shared_arrays` returned, into the policy's parameters too."""
        ...


class LearnerState:
    """A learner in the form that `lockstep.session.run_state` saves and restores."""

    def __init__(self, learner: Learner, comm: Comm) -> None:
        check_methods(learner, "shared_arrays", "load_shared", "shard_state", "restore_shard")
        self._learner, self._comm = learner, comm
        self.shared_arrays, self.load_shared = learner.shared_arrays, learner.load_shared
        self.shard_state, self.restore_shard = learner.shard_state, learner.restore_shard

    def state_to_compare(self) -> dict[str, Any]:
        """The arrays to compare between ranks, by name: host copies, and each device's copy if there are several.

        Empty in a world of one device, which has nothing to compare.
        """
        if self._comm.world.size * len(self._comm.devices) == 1:
            return {}
        named: dict[str, Any] = {**self._learner.shared_arrays()}
        if len(self._comm.devices) > 1:
            for path, leaf in jax.tree_util.tree_leaves_with_path(self._learner.state):
                named[f"state{jax.tree_util.keystr(path)}"] = leaf
        return named
