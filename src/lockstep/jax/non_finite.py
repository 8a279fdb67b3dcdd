"""Which rows give a loss or gradient that is not finite, in JAX; the messages: `lockstep.session.non_finite`."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.experience.rollout import Rollout
from lockstep.jax.batch import Batch
from lockstep.jax.comm import Comm
from lockstep.jax.transitions import Part
from lockstep.record.progress import Progress
from lockstep.session import non_finite as common
from lockstep.session.non_finite import NonFiniteError


def locate_non_finite(
    comm: Comm,
    rollouts: Sequence[Rollout],
    batches: Sequence[Batch],
    progress: Progress,
    row: Callable[[Batch], Sequence[Array]],
    blank: Batch,
) -> NonFiniteError:
    """The error that names where a number that is not finite came from; *collective*.

    Args:
        comm: the ranks.
        rollouts: one for each local shard.
        batches: what was made of them, [T * B], in the rollout's order; on the host.
        progress: before this update.
        row: gradient sum and sums to tell of some rows [N].
        blank: N rows that weigh nothing: what fewer rows are filled up with, so that one compilation serves all.
    """

    @jax.jit
    def finite(part: Batch) -> Array:
        gradient, sums = row(part)
        return jnp.isfinite(jnp.square(gradient).sum()) & jnp.isfinite(sums).all()

    def is_finite(k: int, first: int, count: int) -> bool:
        parts = zip(batches[k], blank, strict=True)
        columns = [np.concatenate([column[first : first + count], empty[count:]]) for column, empty in parts]
        return bool(finite(Batch(*cast(Any, columns))))

    columns = [batch._asdict() for batch in batches]
    return common.locate_non_finite(comm, rollouts, columns, progress, is_finite, len(blank.weight))


def locate_non_finite_replayed(
    comm: Comm,
    rollouts: Sequence[Rollout],
    drawn: Sequence[Sequence[Part]],
    progress: Progress,
    row: Callable[[Part], Sequence[Array]],
) -> NonFiniteError:
    """The error that names where a number that is not finite came from, learning from a replay; *collective*.

    Args:
        comm: the ranks.
        rollouts: one for each local shard.
        drawn: the minibatches since that rollout, oldest first: of each, what each local shard learned from.
        progress: before this rollout.
        row: gradient sum and sums to tell of some rows [N].
    """

    @jax.jit
    def finite(part: Part) -> Array:
        gradient, sums = row(part)
        return jnp.isfinite(jnp.square(gradient).sum()) & jnp.isfinite(sums).all()

    def is_finite(step: int, k: int, i: int | None) -> bool:
        part = drawn[step][k]
        return bool(finite(part if i is None else part._replace(batch=part.batch.row(i))))

    columns = [[part.batch._asdict() for part in parts] for parts in drawn]
    return common.locate_non_finite_replayed(comm, rollouts, columns, progress, is_finite)
