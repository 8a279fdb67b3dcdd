"""A number that is not finite while learning from logged data: which row it came from, and what it came with."""

from collections.abc import Callable, Sequence
from typing import Protocol, Self, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from lockstep.record.progress import Progress
from lockstep.session.non_finite import FOLDER, NonFiniteError
from lockstep.torch.comm import Comm
from lockstep.torch.flat import FlatParameters


class LoggedPart(Protocol):
    """Logged rows of one shard [N]."""

    index: Tensor
    """Which rows of the data these are."""

    def row(self, i: int) -> Self:
        """Row `i` alone."""
        ...

    def columns(self) -> dict[str, Tensor]:
        """All that is learned from, by name."""
        ...


Part = TypeVar("Part", bound=LoggedPart)


def locate_non_finite_logged(
    comm: Comm,
    parts: Sequence[Sequence[Part]],
    progress: Progress,
    loss: Callable[..., tuple[Tensor, Tensor]],
    flat: FlatParameters,
) -> NonFiniteError:
    """The error that names the row that a number that is not finite came from; *collective*.

    Args:
        comm: the ranks.
        parts: for each local shard what `loss` was called with, all of the same rows.
        progress: before this step.
        loss: of some rows, and their sums to tell.
        flat: where their gradient goes; it is lost.
    """

    def is_finite(given: Sequence[Part]) -> bool:
        flat.zero_gradient_()
        value, sums = loss(*given)
        value.backward()
        norm = cast(Tensor, torch.linalg.vector_norm(flat.gradient))
        return bool((sums.sum() + norm).isfinite())

    found: dict[int, int] = {}
    for shard, given in zip(comm.world.shards, parts, strict=True):
        if not is_finite(given):
            index = given[0].index
            rows = (i for i in range(len(index)) if not is_finite([part.row(i) for part in given]))
            found[shard] = int(index[next(rows, 0)])
    gathered: list[list[tuple[int, int]]] = comm.gather_object(list(found.items()), "non_finite")
    worst = next(((rank, *finding) for rank, theirs in enumerate(gathered) for finding in theirs), None)
    held = zip(comm.world.shards, parts, strict=True)
    saved = {shard: _columns(given) for shard, given in held if shard in found or worst is None}
    where = f"update {progress.updates + 1} ({progress.env_steps} rows learned from"
    cure = "; try a smaller learning_rate, or leave such steps out with non_finite=skip"
    if worst is None:
        text = f"the gradient of {where}) is not finite, although that of each part is: their sum is too large; "
        return NonFiniteError(f"{text}its batches are saved in {FOLDER}/{cure}", None, saved)
    rank, shard, row = worst
    text = f"the loss or gradient of row {row} of the data is not finite, in {where}, rank {rank}, shard {shard}); "
    return NonFiniteError(f"{text}its batch is saved in {FOLDER}/shard_{shard}.safetensors{cure}", rank, saved)


def _columns(given: Sequence[Part]) -> dict[str, np.ndarray]:
    """What `given` holds, by name: `batch.*`, and `single.*` of the same rows with one step."""
    columns = [part.columns() for part in given]
    held = {
        f"{of}.{name}": t for of, part in zip(("batch", "single"), columns, strict=False) for name, t in part.items()
    }
    return {name: tensor.detach().cpu().clone().numpy() for name, tensor in held.items()}
