"""A number that is not finite: which rank, environment and step it came from, and what it came with.

Called by all ranks together once they agree that there is one; nothing here is on the way of a healthy run.

Shapes: T steps of a rollout, B environments of a shard, N transitions of a shard's part of a minibatch.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from lockstep.distributed.comm import Comm
from lockstep.errors import RunError
from lockstep.experience.rollout import Rollout
from lockstep.record.array_file import leave_arrays
from lockstep.record.progress import Progress

FOLDER = "non_finite"
_ROLLOUT = ("observation", "action", "reward", "terminated", "ended", "weight")

_COLUMNS = ("observation", "action", "value", "log_prob", "target", "advantage")
_REPLAYED = ("observation", "reward", "next_observation", "weight")

Columns = Mapping[str, np.ndarray]
"""What was learned from: arrays by name, each with a row for each transition."""

Finding = tuple[int, int, int, str]
"""How near to the cause (0 is nearest), step of the rollout, global index of the environment, and words.

From a replay: 2, number of the gradient step after the rollout, row of the minibatch, and words."""

Located = tuple[int, int, int, str, int, int]
"""A finding with its rank and shard."""


class NonFiniteError(RunError):
    """A number that is not finite stops the run: raised by all ranks, with the same words.

    Attributes:
        rank: the rank it came from; None if the sum over ranks alone is not finite.
        batches: what this rank saves, by shard: what it learned from (`batch.*`) and what its environments said
            (`rollout.*`), each [T, B, ...].
    """

    def __init__(self, message: str, rank: int | None, batches: dict[int, dict[str, np.ndarray]]) -> None:
        super().__init__(message)
        self.rank, self.batches = rank, batches


def locate_non_finite(
    comm: Comm,
    rollouts: Sequence[Rollout],
    batches: Sequence[Columns],
    progress: Progress,
    is_finite: Callable[[int, int, int], bool],
    rows: int,
) -> NonFiniteError:
    """The error that names where a number that is not finite came from; *collective*.

    Args:
        comm: the ranks.
        rollouts: one for each local shard.
        batches: what was made of them, [T * B], in the rollout's order.
        progress: before this update.
        is_finite: whether loss and gradient are, of the `count` rows from `first` on of local shard number `k`.
        rows: how many rows to try at once, as many as a gradient step takes (N).
    """
    world, size = comm.world, rollouts[0].reward.shape[1]
    found: dict[int, Finding] = {}
    for k, (shard, rollout, batch) in enumerate(zip(world.shards, rollouts, batches, strict=True)):
        if (fault := rollout.fault) is not None:
            found[shard] = (0, fault.step, fault.env, str(fault))
        elif (finding := _in_columns(batch, _COLUMNS, partial(_made, size, shard))) is not None:
            found[shard] = finding
        elif (row := _first_bad(partial(is_finite, k), 0, rollout.reward.size, rows)) is not None:
            found[shard] = _made(size, shard, row, "loss or gradient", "")
    worst = _agreed(comm, found)
    held = zip(world.shards, rollouts, batches, strict=True)
    saved = {shard: _of_update(rollout, batch) for shard, rollout, batch in held if shard in found or worst is None}
    message, rank = _words(worst, progress, size * world.num_shards)
    return NonFiniteError(message, rank, saved)


def locate_non_finite_replayed(
    comm: Comm,
    rollouts: Sequence[Rollout],
    drawn: Sequence[Sequence[Columns]],
    progress: Progress,
    is_finite: Callable[[int, int, int | None], bool],
) -> NonFiniteError:
    """The error that names where a number that is not finite came from, learning from a replay; *collective*.

    Args:
        comm: the ranks.
        rollouts: one for each local shard.
        drawn: the minibatches since that rollout, oldest first: of each, what each local shard drew.
        progress: before this rollout.
        is_finite: whether loss and gradient are, of minibatch number `step`, local shard number `k`, and one of its
            rows, or None for all.
    """
    world, (steps, size) = comm.world, rollouts[0].reward.shape
    found: dict[int, Finding] = {}
    saved: dict[int, dict[str, np.ndarray]] = {}
    for k, (shard, rollout) in enumerate(zip(world.shards, rollouts, strict=True)):
        if (fault := rollout.fault) is not None:
            found[shard] = (0, fault.step, fault.env, str(fault))
            saved[shard] = _told(rollout)
            continue
        for step, batch in enumerate(parts[k] for parts in drawn):
            finding = _in_columns(batch, _REPLAYED, partial(_drawn, step))
            if finding is None and not is_finite(step, k, None):
                row = next((i for i in range(len(batch["reward"])) if not is_finite(step, k, i)), None)
                finding = None if row is None else _drawn(step, row, "loss or gradient", "")
            if finding is not None:
                found[shard], saved[shard] = finding, _of_batch(batch)
                break
    worst = _agreed(comm, found)
    if worst is None and drawn:
        saved = {shard: _of_batch(part) for shard, part in zip(world.shards, drawn[0], strict=True)}
    message, rank = _words(worst, progress, size * world.num_shards, steps)
    return NonFiniteError(message, rank, saved)


def save(error: NonFiniteError, run_dir: Path) -> None:
    """Write the batches of this rank, each whole or not at all. Never raises: the error itself is to be told."""
    for shard, arrays in error.batches.items():
        path = run_dir / FOLDER / f"shard_{shard}.safetensors"
        leave_arrays(path, arrays, {"format": 1, "error": str(error)})


def _agreed(comm: Comm, found: dict[int, Finding]) -> Located | None:
    """The finding of all ranks that is nearest to the cause; *collective*."""
    gathered: list[dict[str, Finding]] = comm.gather_object({str(shard): f for shard, f in found.items()}, "non_finite")
    every = [(*finding, rank, int(shard)) for rank, theirs in enumerate(gathered) for shard, finding in theirs.items()]
    return min(every, default=None)


def _words(worst: Located | None, progress: Progress, num_envs: int, steps: int = 0) -> tuple[str, int | None]:
    """The message, and the rank that it names, after a rollout of `steps`."""
    update, rest = f"update {progress.updates + 1}", "; or leave such updates out with non_finite=skip"
    if worst is None:
        text = f"the gradient of {update} (environment step {progress.env_steps}) is not finite, although that of each "
        text += (
            f"transition is: their sum is too large; its batches are saved in {FOLDER}/; try a smaller learning_rate"
        )
        return text + rest, None
    nearness, step, _, words, rank, shard = worst
    taken = progress.env_steps + (steps if nearness == 2 else step + 1) * num_envs
    where = f"in gradient step {step} after" if nearness == 2 else f"in step {step} of" if step >= 0 else "before"
    cure = "look for a division by 0 or a diverging simulation" if nearness == 0 else "try a smaller learning_rate"
    text = f"{words}, {where} the rollout of {update} (environment step {taken}, rank {rank}, shard {shard}); "
    return text + f"its batch is saved in {FOLDER}/shard_{shard}.safetensors; {cure}{rest}", rank


def _in_columns(batch: Columns, columns: Sequence[str], made: Callable[[int, str, str], Finding]) -> Finding | None:
    """The first row with a column that is not finite: what the network or the returns made of finite numbers."""
    found: list[Finding] = []
    for column in columns:
        values = batch[column].reshape(len(batch[column]), -1)
        bad = ~np.isfinite(values).all(1)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            number = next(float(x) for x in values[row] if not np.isfinite(x))
            found.append(made(row, f"the {column.replace('_', ' ')}", f" ({number})"))
    return min(found, key=lambda finding: finding[:3], default=None)


def _first_bad(is_finite: Callable[[int, int], bool], first: int, end: int, rows: int) -> int | None:
    """The first row that is not finite by itself, found by halving: what any row spoils, the sum over all shows."""
    for start in range(first, end, rows):
        count = min(rows, end - start)
        if not is_finite(start, count):
            inner = start if count == 1 else _first_bad(is_finite, start, start + count, (count + 1) // 2)
            if inner is not None:
                return inner
    return None


def _made(size: int, shard: int, row: int, what: str, number: str) -> Finding:
    """A finding about row t * B + b of a shard's batch."""
    step, b = divmod(row, size)
    env = shard * size + b
    return 1, step, env, f"{what} of environment {env} is not finite{number}"


def _drawn(step: int, row: int, what: str, number: str) -> Finding:
    """A finding about a row of what a shard drew for a gradient step."""
    return 2, step, row, f"{what} of transition {row} from the replay is not finite{number}"


def _of_update(rollout: Rollout, batch: Columns) -> dict[str, np.ndarray]:
    shape = rollout.reward.shape
    columns = {name: array.reshape(*shape, *array.shape[1:]) for name, array in _of_batch(batch).items()}
    return columns | _told(rollout)


def _of_batch(batch: Columns) -> dict[str, np.ndarray]:
    return {f"batch.{name}": array.copy() for name, array in batch.items()}


def _told(rollout: Rollout) -> dict[str, np.ndarray]:
    # Copies: the next rollout is written to the same memory.
    return {f"rollout.{name}": getattr(rollout, name).copy() for name in _ROLLOUT}
