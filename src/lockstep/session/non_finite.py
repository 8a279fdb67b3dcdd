"""Locates the source of a non-finite value: rank, shard, environment and step, or row of the logged data.

Called by all ranks together once they agree that there is one, and never in a healthy run.

Shapes: T steps of a rollout, B environments of a shard, N transitions of a shard's part of a minibatch.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from lockstep.distributed.comm import Comm
from lockstep.errors import RunError
from lockstep.experience.rollout import Rollout
from lockstep.record.array_file import write_arrays_or_warn
from lockstep.record.progress import Progress

FOLDER = "non_finite"
_ROLLOUT = ("observation", "action", "reward", "terminated", "ended", "weight")
_COLUMNS = ("observation", "action", "value", "log_prob", "target", "advantage")
_REPLAY_COLUMNS = ("observation", "reward", "next_observation", "weight")

ENVIRONMENT, UPDATE, GRADIENT_STEP = range(3)
"""Values of `Finding.source`."""
_SKIP = "or leave such updates out with non_finite=skip"

Arrays = dict[str, np.ndarray]
SomeBatch = TypeVar("SomeBatch", contravariant=True)


class LossReader(Protocol[SomeBatch]):
    """How a backend reads a shard's batch and computes its loss."""

    def arrays(self, batch: SomeBatch) -> Arrays:
        """The columns of a batch on the host, each with one row per transition, named `batch.COLUMN`."""
        ...

    def is_finite(self, batch: SomeBatch, first: int, count: int) -> bool:
        """Whether loss and gradient of `count` rows from `first` on are finite."""
        ...


class Finding(NamedTuple):
    """A non-finite value in one shard. The smallest of several is nearest to the cause."""

    source: int
    """`ENVIRONMENT`, `UPDATE` (from a rollout) or `GRADIENT_STEP` (from a replay)."""
    step: int
    """Step of the rollout, or gradient step since the rollout."""
    row: int
    """Global index of the environment, row of the minibatch, or row of the logged data."""
    description: str
    rank: int = 0
    """Filled in by `nearest`, like `shard`."""
    shard: int = 0


class NonFiniteError(RunError):
    """A non-finite value stops the run: raised by all ranks with the same message.

    Attributes:
        rank: where it came from; None if only the sum over ranks is not finite.
        batches: the arrays that this rank saves, by shard: the minibatch (`batch.*`) and the rollout (`rollout.*`),
            each [T, B, ...].
    """

    def __init__(self, message: str, rank: int | None, batches: dict[int, Arrays]) -> None:
        super().__init__(message)
        self.rank = rank
        self.batches = batches


def locate_non_finite(
    comm: Comm,
    rollouts: Sequence[Rollout],
    batches: Sequence[SomeBatch],
    progress: Progress,
    reader: LossReader[SomeBatch],
    rows: int,
) -> NonFiniteError:
    """Locate a non-finite value of an on-policy update; *collective*.

    Args:
        comm: the ranks.
        rollouts: one for each local shard.
        batches: made from them, [T * B], in the rollout's order.
        progress: before this update.
        reader: of these batches.
        rows: rows of a gradient step (N), tried together.
    """
    world, (num_steps, num_envs) = comm.world, rollouts[0].reward.shape
    findings: dict[int, Finding] = {}
    arrays = [reader.arrays(batch) for batch in batches]
    for shard, rollout, batch, columns in zip(world.shards, rollouts, batches, arrays, strict=True):
        if rollout.fault is not None:
            findings[shard] = Finding(ENVIRONMENT, rollout.fault.step, rollout.fault.env, str(rollout.fault))
            continue
        bad = _bad_column(columns, _COLUMNS) or _bad_loss(reader, batch, num_steps * num_envs, rows)
        if bad is not None:
            step, env = divmod(bad.row, num_envs)
            env += shard * num_envs
            findings[shard] = Finding(UPDATE, step, env, bad.describe(f"environment {env}"))
    cause = nearest(comm, findings)
    saved = {
        shard: _by_step(columns, rollout) | _rollout_arrays(rollout)
        for shard, rollout, columns in zip(world.shards, rollouts, arrays, strict=True)
        if shard in findings or cause is None
    }
    return _error(cause, progress, num_envs * world.num_shards, saved)


def locate_non_finite_replayed(
    comm: Comm,
    rollouts: Sequence[Rollout],
    minibatches: Sequence[Sequence[SomeBatch]],
    progress: Progress,
    reader: LossReader[SomeBatch],
) -> NonFiniteError:
    """Locate a non-finite value while learning from a replay; *collective*.

    Args:
        comm: the ranks.
        rollouts: one for each local shard.
        minibatches: of each gradient step since that rollout the part of each local shard; empty for the first ones,
            which are known to be finite.
        progress: before this rollout.
        reader: of these parts.
    """
    world, (num_steps, num_envs) = comm.world, rollouts[0].reward.shape
    findings: dict[int, Finding] = {}
    saved: dict[int, Arrays] = {}
    for k, (shard, rollout) in enumerate(zip(world.shards, rollouts, strict=True)):
        if rollout.fault is not None:
            findings[shard] = Finding(ENVIRONMENT, rollout.fault.step, rollout.fault.env, str(rollout.fault))
            saved[shard] = _rollout_arrays(rollout)
            continue
        for step, parts in enumerate(minibatches):
            if not parts:
                continue
            columns = reader.arrays(parts[k])
            rows = len(columns["batch.reward"])
            bad = _bad_column(columns, _REPLAY_COLUMNS) or _bad_loss(reader, parts[k], rows, rows)
            if bad is not None:
                place = f"transition {bad.row} from the replay"
                findings[shard] = Finding(GRADIENT_STEP, step, bad.row, bad.describe(place))
                saved[shard] = _copies(columns)
                break
    cause = nearest(comm, findings)
    first = next(filter(None, minibatches), None)
    if cause is None and first is not None:
        saved = {shard: _copies(reader.arrays(part)) for shard, part in zip(world.shards, first, strict=True)}
    return _error(cause, progress, num_envs * world.num_shards, saved, num_steps)


def locate_non_finite_offline(
    comm: Comm,
    batches: Sequence[SomeBatch],
    progress: Progress,
    reader: LossReader[SomeBatch],
) -> NonFiniteError:
    """Locate a non-finite loss or gradient of logged data; *collective*.

    Args:
        comm: the ranks.
        batches: the part of each local shard, with the column `index`: which rows of the data these are.
        progress: before this step.
        reader: of these parts.
    """
    findings: dict[int, Finding] = {}
    arrays = [reader.arrays(batch) for batch in batches]
    for shard, batch, columns in zip(comm.world.shards, batches, arrays, strict=True):
        index = columns["batch.index"]
        bad = _bad_loss(reader, batch, len(index), len(index))
        if bad is not None:
            findings[shard] = Finding(GRADIENT_STEP, 0, int(index[bad.row]), "")
    cause = nearest(comm, findings)
    saved = {
        shard: _copies(columns)
        for shard, columns in zip(comm.world.shards, arrays, strict=True)
        if shard in findings or cause is None
    }
    where = f"update {progress.updates + 1} ({progress.env_steps} rows learned from"
    advice = "try a smaller learning_rate, or leave such steps out with non_finite=skip"
    if cause is None:
        message = (
            f"the gradient of {where}) is not finite, although that of each row is: their sum is too large; "
            f"its batches are saved in {FOLDER}/; {advice}"
        )
        return NonFiniteError(message, None, saved)
    message = (
        f"the loss or gradient of row {cause.row} of the data is not finite, in {where}, rank {cause.rank}, "
        f"shard {cause.shard}); its batch is saved in {FOLDER}/shard_{cause.shard}.safetensors; {advice}"
    )
    return NonFiniteError(message, cause.rank, saved)


def nearest(comm: Comm, findings: Mapping[int, Finding]) -> Finding | None:
    """The finding of all ranks that is nearest to the cause, from those of each local shard; *collective*."""
    gathered: list[dict[str, Finding]] = comm.gather_object(
        {str(shard): f for shard, f in findings.items()}, "non_finite"
    )
    located = [
        Finding(*finding[:4], rank, int(shard))
        for rank, of_rank in enumerate(gathered)
        for shard, finding in of_rank.items()
    ]
    return min(located, default=None)


def save_batches(error: NonFiniteError, run_dir: Path) -> None:
    """Write the batches of this rank, each atomically. Never raises, so that `error` itself is reported."""
    for shard, arrays in error.batches.items():
        path = run_dir / FOLDER / f"shard_{shard}.safetensors"
        write_arrays_or_warn(path, arrays, {"format": 1, "error": str(error)})


def _error(
    cause: Finding | None, progress: Progress, num_envs: int, saved: dict[int, Arrays], rollout_steps: int = 0
) -> NonFiniteError:
    """The error for a cause in a rollout of `num_envs` environments, or after one of `rollout_steps` steps."""
    update = f"update {progress.updates + 1}"
    if cause is None:
        message = (
            f"the gradient of {update} (environment step {progress.env_steps}) is not finite, although that of each "
            f"transition is: their sum is too large; its batches are saved in {FOLDER}/; "
            f"try a smaller learning_rate; {_SKIP}"
        )
        return NonFiniteError(message, None, saved)
    steps = cause.step + 1
    if cause.source == GRADIENT_STEP:
        steps, where = rollout_steps, f"in gradient step {cause.step} after"
    elif cause.step >= 0:
        where = f"in step {cause.step} of"
    else:
        where = "before"
    advice = "try a smaller learning_rate"
    if cause.source == ENVIRONMENT:
        advice = "look for a division by 0 or a diverging simulation"
    message = (
        f"{cause.description}, {where} the rollout of {update} "
        f"(environment step {progress.env_steps + steps * num_envs}, rank {cause.rank}, shard {cause.shard}); "
        f"its batch is saved in {FOLDER}/shard_{cause.shard}.safetensors; {advice}; {_SKIP}"
    )
    return NonFiniteError(message, cause.rank, saved)


class _BadRow(NamedTuple):
    row: int
    order: int
    """Of the column."""
    what: str
    value: str

    def describe(self, place: str) -> str:
        return f"{self.what} of {place} is not finite{self.value}"


def _bad_column(arrays: Arrays, names: Sequence[str]) -> _BadRow | None:
    """The first row with a non-finite value in one of the named columns."""
    bad_rows: list[_BadRow] = []
    for order, name in enumerate(names):
        column = arrays[f"batch.{name}"]
        values = column.reshape(len(column), -1)
        bad = ~np.isfinite(values).all(1)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            value = next(float(x) for x in values[row] if not np.isfinite(x))
            bad_rows.append(_BadRow(row, order, f"the {name.replace('_', ' ')}", f" ({value})"))
    return min(bad_rows, default=None)


def _bad_loss(reader: LossReader[SomeBatch], batch: SomeBatch, end: int, rows: int, first: int = 0) -> _BadRow | None:
    """The first row whose own loss or gradient is not finite, found by halving groups of `rows`."""
    for start in range(first, end, rows):
        count = min(rows, end - start)
        if not reader.is_finite(batch, start, count):
            if count == 1:
                return _BadRow(start, 0, "loss or gradient", "")
            bad = _bad_loss(reader, batch, start + count, (count + 1) // 2, start)
            if bad is not None:
                return bad
    return None


def _by_step(arrays: Arrays, rollout: Rollout) -> Arrays:
    shape = rollout.reward.shape
    return {name: array.reshape(*shape, *array.shape[1:]) for name, array in _copies(arrays).items()}


def _rollout_arrays(rollout: Rollout) -> Arrays:
    # Copies: the next rollout is written to the same memory.
    return {f"rollout.{name}": getattr(rollout, name).copy() for name in _ROLLOUT}


def _copies(arrays: Arrays) -> Arrays:
    return {name: array.copy() for name, array in arrays.items()}
