"""Checkpoints for a training loop of one's own, with JAX's arrays."""

from typing import Any

import jax
import numpy as np

from lockstep.session import checkpoint_manager


class CheckpointManager(checkpoint_manager.CheckpointManager):
    """Checkpoints of a loop of your own; arrays come back as numpy's, for `comm.replicate` and `comm.shard`.

    Save the leaves of trees with classes of their own, such as optax's states: `jax.tree.leaves(state)`, and
    `jax.tree.unflatten(jax.tree.structure(state), leaves)` to restore them.
    """

    def to_numpy(self, value: Any) -> tuple[np.ndarray, str] | None:
        """The bits of an array that is equal on all devices."""
        if not isinstance(value, jax.Array):
            return None
        array = np.asarray(value)
        bits = array.view(np.int16) if array.dtype.name == "bfloat16" else array  # which files do not know
        return bits, array.dtype.name

    def from_numpy(self, array: np.ndarray, kind: str) -> np.ndarray:
        """The array of these bits."""
        return array.view(jax.numpy.bfloat16) if kind == "bfloat16" else array
