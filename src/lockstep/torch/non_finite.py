"""Which rows give a loss or gradient that is not finite, in PyTorch; the messages: `lockstep.session.non_finite`."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import cast

import numpy as np
import torch
from torch import Tensor

from lockstep.experience.rollout import Rollout
from lockstep.record.progress import Progress
from lockstep.session import non_finite as common
from lockstep.session.non_finite import NonFiniteError
from lockstep.torch.batch import Batch
from lockstep.torch.comm import Comm
from lockstep.torch.flat import FlatParameters
from lockstep.torch.transitions import TransitionBatch

Loss = Callable[[Batch], tuple[Tensor, Tensor]]
ReplayLoss = Callable[[TransitionBatch], tuple[Tensor, Tensor, Tensor]]


def locate_non_finite(
    comm: Comm,
    rollouts: Sequence[Rollout],
    batches: Sequence[Batch],
    progress: Progress,
    loss: Loss,
    flat: FlatParameters,
    rows: int,
) -> NonFiniteError:
    """The error that names where a number that is not finite came from; *collective*.

    Args:
        comm: the ranks.
        rollouts: one for each local shard.
        batches: what was made of them, [T * B], in the rollout's order.
        progress: before this update.
        loss: of some rows [n], and sums to tell.
        flat: where their gradient goes; it is lost.
        rows: how many rows to try at once, as many as a gradient step takes (N).
    """

    def is_finite(k: int, first: int, count: int) -> bool:
        order = torch.arange(first, first + count, device=batches[k].target.device)
        return _is_finite(*loss(batches[k].shuffled(order)), flat=flat)

    return common.locate_non_finite(comm, rollouts, [_columns(batch) for batch in batches], progress, is_finite, rows)


def locate_non_finite_replayed(
    comm: Comm,
    rollouts: Sequence[Rollout],
    drawn: Sequence[Sequence[TransitionBatch]],
    progress: Progress,
    loss: ReplayLoss,
    flat: FlatParameters,
) -> NonFiniteError:
    """The error that names where a number that is not finite came from, learning from a replay; *collective*.

    Args:
        comm: the ranks.
        rollouts: one for each local shard.
        drawn: the minibatches since that rollout, oldest first: of each, what each local shard drew.
        progress: before this rollout.
        loss: of some rows, their sums to tell, and their priorities.
        flat: where their gradient goes; it is lost.
    """

    def is_finite(step: int, k: int, row: int | None) -> bool:
        batch = drawn[step][k]
        value, sums, _ = loss(batch if row is None else batch.row(row))
        return _is_finite(value, sums, flat=flat)

    columns = [[_columns(part) for part in parts] for parts in drawn]
    return common.locate_non_finite_replayed(comm, rollouts, columns, progress, is_finite)


def _is_finite(value: Tensor, sums: Tensor, *, flat: FlatParameters) -> bool:
    flat.zero_gradient_()
    value.backward()
    norm = cast(Tensor, torch.linalg.vector_norm(flat.gradient))
    return bool((sums.sum() + norm).isfinite())


def _columns(batch: Batch | TransitionBatch) -> dict[str, np.ndarray]:
    held: dict[str, Tensor] = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return {name: tensor.detach().cpu().numpy() for name, tensor in held.items()}
