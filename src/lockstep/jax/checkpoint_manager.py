"""Checkpoints of JAX arrays, for custom training loops."""

from typing import Any

import jax
import numpy as np

from lockstep.errors import ConfigError
from lockstep.session import checkpoint_manager


class CheckpointManager(checkpoint_manager.CheckpointManager):
    """Checkpoints of a custom training loop; restores numpy arrays, for `comm.replicate` and `comm.shard`.

    Save custom pytrees such as optax's states as leaves: `jax.tree.leaves(state)`; restore them with
    `jax.tree.unflatten(jax.tree.structure(state), leaves)`.
    """

    def to_numpy(self, value: Any, place: str) -> tuple[np.ndarray, str] | None:
        """The bits of a replicated array, and its dtype; None for other values."""
        if not isinstance(value, jax.Array):
            return None
        if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            raise ConfigError(
                f"{place} is a typed random key of JAX, which a checkpoint cannot hold; save jax.random.key_data(key), "
                "and restore it with jax.random.wrap_key_data"
            )
        array = np.asarray(value)
        # Numpy, and so the checkpoint format, has no bfloat16.
        bits = array.view(np.int16) if array.dtype.name == "bfloat16" else array
        return bits, array.dtype.name

    def from_numpy(self, array: np.ndarray, kind: str) -> np.ndarray:
        """The inverse of `to_numpy`."""
        return array.view(jax.numpy.bfloat16) if kind == "bfloat16" else array
