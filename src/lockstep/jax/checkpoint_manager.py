"""Checkpoints of JAX arrays, for custom training loops."""

from typing import Any, cast

import jax
import numpy as np

from lockstep.errors import ConfigError
from lockstep.record.checkpoint import can_store
from lockstep.session import checkpoint_manager


class CheckpointManager(checkpoint_manager.CheckpointManager):
    """Checkpoints of a custom training loop; restores numpy arrays, for `comm.replicate` and `comm.shard`.

    Save custom pytrees such as optax's states as leaves: `jax.tree.leaves(state)`; restore them with
    `jax.tree.unflatten(jax.tree.structure(state), leaves)`.
    """

    def to_numpy(self, value: Any, place: str) -> tuple[np.ndarray, str] | None:
        """The bits of a replicated array, or of one in numpy of JAX's types, and its dtype; None for other values."""
        if isinstance(value, np.ndarray):
            array = cast("np.ndarray", value)
            return (_bits(array), array.dtype.name) if _is_of_jax(array.dtype) else None
        if not isinstance(value, jax.Array):
            return None
        if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            raise ConfigError(
                f"{place} is a typed random key of JAX, which a checkpoint cannot hold; save jax.random.key_data(key), "
                "and restore it with jax.random.wrap_key_data"
            )
        array = np.asarray(value)
        return _bits(array), array.dtype.name

    def from_numpy(self, array: np.ndarray, kind: str) -> np.ndarray:
        """The inverse of `to_numpy`."""
        return array.view(jax.numpy.dtype(kind))


def _is_of_jax(dtype: np.dtype[Any]) -> bool:
    """Whether these are real numbers of a type that numpy, and so the format of checkpoints, does not have."""
    return not can_store(dtype) and any(jax.numpy.issubdtype(dtype, kind) for kind in (np.floating, np.integer))


def _bits(array: np.ndarray) -> np.ndarray:
    """The array, or integers of the same bits for a type that numpy does not have, such as bfloat16."""
    return array.view(f"i{array.dtype.itemsize}") if _is_of_jax(array.dtype) else array
