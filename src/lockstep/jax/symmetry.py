"""Mirrored copies of a batch's transitions (Mittal et al., 2024, arXiv:2403.04359)."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.envs.spec import EnvSpec
from lockstep.jax.batch import Batch
from lockstep.session.symmetry import count_copies, load_symmetry


class Symmetry:
    """Adds to a batch the copies that the user's function of `symmetry` makes.

    Args:
        path: of the function.
        spec: of the environments.
    """

    def __init__(self, path: str, spec: EnvSpec) -> None:
        self._function = function = load_symmetry(path)

        def call(observation: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, ...]:
            return tuple(np.asarray(result) for result in function(jnp.asarray(observation), jnp.asarray(action)))

        self._copies = count_copies(path, spec, call)

    def augmented(self, batch: Batch) -> Batch:
        """M N rows, of which the first N are those of `batch`; each has a part of its weight, with the same total."""
        observation, action = self._function(batch.observation, batch.action)

        def repeated(column: Array) -> Array:
            return jnp.tile(column, self._copies)

        return Batch(
            observation,
            action,
            log_prob=repeated(batch.log_prob),
            value=repeated(batch.value),
            advantage=repeated(batch.advantage),
            target=repeated(batch.target),
            weight=repeated(batch.weight / self._copies),
        )
