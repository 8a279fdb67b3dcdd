"""Mirrored copies of a batch's transitions (Mittal et al., 2024, arXiv:2403.04359).

Shapes: N transitions; M, the transition and its mirrored copies.
"""

from collections.abc import Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.envs.spec import EnvSpec
from lockstep.jax.batch import Batch
from lockstep.session.symmetry import count_copies, load_symmetry


class Symmetry:
    """The user's function of `symmetry`.

    Args:
        path: of the function.
        spec: of the environments.
    """

    def __init__(self, path: str, spec: EnvSpec) -> None:
        function = load_symmetry(path, spec)
        self._function = jax.jit(function)

        def call(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
            return tuple(np.asarray(result) for result in function(*map(jnp.asarray, arrays)))

        self._copies = count_copies(path, spec, call)

    def mirrored(self, raw: Sequence[Array | np.ndarray], action: Array | np.ndarray) -> tuple[list[Array], Array]:
        """The copies of each transition, without itself.

        Args:
            raw: observations [T, B, *O], and the critic's own [T, B, C], if there are any, as the environments returned
                them: a normalizer's mean is not symmetric.
            action: [T, B] or [T, B, D].

        Returns:
            Observations [T, B, M - 1, *O] and the critic's own [T, B, M - 1, C], to be normalized, and actions
            [T, B, M - 1] or [T, B, M - 1, D].
        """
        steps, size = action.shape[:2]
        given = (rows.reshape(steps * size, *rows.shape[2:]) for rows in (raw[0], action, *raw[1:]))
        observation, mirrored, *critic = (
            jnp.moveaxis(result.reshape(self._copies, steps, size, *result.shape[1:])[1:], 0, 2)
            for result in self._function(*given)
        )
        return [observation, *critic], mirrored


def augmented(batch: Batch) -> Batch:
    """M N rows, of which the first N are those of `batch`; each has a part of its weight, with the same total."""
    if batch.mirrored_observation is None or batch.mirrored_action is None:
        return batch
    copies = 1 + batch.mirrored_action.shape[1]

    def joined(column: Array, mirrored: Array) -> Array:
        return jnp.concatenate([column, mirrored.swapaxes(0, 1).reshape(-1, *column.shape[1:])])

    def repeated(column: Array) -> Array:
        return jnp.tile(column, copies)

    return Batch(
        joined(batch.observation, batch.mirrored_observation),
        joined(batch.action, batch.mirrored_action),
        log_prob=repeated(batch.log_prob),
        value=repeated(batch.value),
        advantage=repeated(batch.advantage),
        target=repeated(batch.target),
        weight=repeated(batch.weight / copies),
        critic=None if batch.mirrored_critic is None else joined(cast(Array, batch.critic), batch.mirrored_critic),
    )
