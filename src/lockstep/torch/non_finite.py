"""A number that is not finite: which rank, environment and step it came from, and what it came with.

Called by all ranks together once they agree that there is one; nothing here is on the way of a healthy run.

Shapes: T steps of a rollout, B environments of a shard, N transitions of a shard's part of a minibatch.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from lockstep.errors import RunError
from lockstep.progress import Progress
from lockstep.rollout import Rollout
from lockstep.torch.batch import Batch
from lockstep.torch.comm import Comm
from lockstep.torch.flat import FlatParameters
from lockstep.torch.tensor_file import leave_tensors

FOLDER = "non_finite"
_ROLLOUT = ("observation", "action", "reward", "terminated", "ended", "weight")

Loss = Callable[[Batch], tuple[Tensor, Tensor]]

Finding = tuple[int, int, int, str]
"""How near to the cause (0 is nearest), step of the rollout, global index of the environment, and words."""

Located = tuple[int, int, int, str, int, int]
"""A finding with its rank and shard."""


class NonFiniteError(RunError):
    """A number that is not finite stops the run: raised by all ranks, with the same words.

    Attributes:
        rank: the rank it came from; None if the sum over ranks alone is not finite.
        batches: what this rank saves, by shard: what it learned from (`batch.*`) and what its environments said
            (`rollout.*`), each [T, B, ...].
    """

    def __init__(self, message: str, rank: int | None, batches: dict[int, dict[str, Tensor]]) -> None:
        super().__init__(message)
        self.rank, self.batches = rank, batches


def blame(
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
    world, size = comm.world, rollouts[0].reward.shape[1]

    def is_finite(part: Batch) -> bool:
        flat.zero_gradient_()
        value, sums = loss(part)
        value.backward()
        norm = cast(Tensor, torch.linalg.vector_norm(flat.gradient))
        return bool((sums.sum() + norm).isfinite())

    found: dict[int, Finding] = {}
    for shard, rollout, batch in zip(world.shards, rollouts, batches, strict=True):
        if (fault := rollout.fault) is not None:
            found[shard] = (0, fault.step, fault.env, str(fault))
        elif (finding := _in_columns(batch, size, shard)) is not None:
            found[shard] = finding
        elif (row := _first_bad(batch, is_finite, rows)) is not None:
            found[shard] = _made(row, size, shard, "loss or gradient", "")
    told: list[dict[str, Finding]] = comm.gather_object({str(shard): f for shard, f in found.items()}, "non_finite")
    every = [(*finding, rank, int(shard)) for rank, theirs in enumerate(told) for shard, finding in theirs.items()]
    held = zip(world.shards, rollouts, batches, strict=True)
    saved = {shard: _tensors(rollout, batch) for shard, rollout, batch in held if shard in found or not every}
    message, rank = _words(min(every, default=None), progress, size * world.num_shards)
    return NonFiniteError(message, rank, saved)


def save(error: NonFiniteError, run_dir: Path) -> None:
    """Write the batches of this rank, each whole or not at all. Never raises: the error itself is to be told."""
    for shard, tensors in error.batches.items():
        path = run_dir / FOLDER / f"shard_{shard}.safetensors"
        leave_tensors(path, tensors, {"format": 1, "error": str(error)})


def _words(worst: Located | None, progress: Progress, num_envs: int) -> tuple[str, int | None]:
    """The message, and the rank that it names."""
    update, rest = f"update {progress.updates + 1}", "; or leave such updates out with non_finite=skip"
    if worst is None:
        text = f"the gradient of {update} (environment step {progress.env_steps}) is not finite, although that of each "
        text += (
            f"transition is: their sum is too large; its batches are saved in {FOLDER}/; try a smaller learning_rate"
        )
        return text + rest, None
    nearness, step, _, words, rank, shard = worst
    taken = progress.env_steps + (step + 1) * num_envs
    where = f"in step {step} of" if step >= 0 else "before"
    cure = "look for a division by 0 or a diverging simulation" if nearness == 0 else "try a smaller learning_rate"
    text = f"{words}, {where} the rollout of {update} (environment step {taken}, rank {rank}, shard {shard}); "
    return text + f"its batch is saved in {FOLDER}/shard_{shard}.safetensors; {cure}{rest}", rank


def _in_columns(batch: Batch, size: int, shard: int) -> Finding | None:
    """The first row with a column that is not finite: what the network or the returns made of finite numbers."""
    found: list[Finding] = []
    for column in ("observation", "action", "value", "log_prob", "target", "advantage"):
        values: Tensor = getattr(batch, column)
        bad = ~values.isfinite().flatten(1).all(1) if values.ndim > 1 else ~values.isfinite()
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            number = next(float(x) for x in values[row].flatten() if not x.isfinite())
            found.append(_made(row, size, shard, f"the {column.replace('_', ' ')}", f" ({number})"))
    return min(found, key=lambda finding: finding[:3], default=None)


def _first_bad(batch: Batch, is_finite: Callable[[Batch], bool], rows: int) -> int | None:
    """The first row that is not finite by itself, found by halving: what any row spoils, the sum over all shows."""
    first = 0
    for part in batch.split(rows):
        count = len(part.target)
        if not is_finite(part):
            inner = 0 if count == 1 else _first_bad(part, is_finite, (count + 1) // 2)
            if inner is not None:
                return first + inner
        first += count
    return None


def _made(row: int, size: int, shard: int, what: str, number: str) -> Finding:
    """A finding about row t * B + b of a shard's batch."""
    step, b = divmod(row, size)
    env = shard * size + b
    return 1, step, env, f"{what} of environment {env} is not finite{number}"


def _tensors(rollout: Rollout, batch: Batch) -> dict[str, Tensor]:
    shape = rollout.reward.shape
    kept = {f"batch.{f.name}": getattr(batch, f.name).detach().cpu().unflatten(0, shape) for f in fields(Batch)}
    kept |= {f"rollout.{name}": torch.from_numpy(getattr(rollout, name)) for name in _ROLLOUT}
    return {name: tensor.clone() for name, tensor in kept.items()}  # safetensors refuses memory held in common
