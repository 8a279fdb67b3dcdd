"""Warnings about the data of a run that fit, and yet are probably not what was meant."""

import numpy as np
from numpy.typing import NDArray

from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.data.columns import Index
from lockstep.data.dataset import Dataset
from lockstep.run import OfflineRun

_TIMES = 100_000
"""Rows whose times are looked at."""
_COMPARED = 1 << 17
"""Rows of each of two data, at most, that are compared with each other, roughly."""
_READ = 1 << 20
"""Keys that are read at once."""
_FORGETS, _LASTS = 0.1, 0.01
"""A discount of a usual step below the first, or a step shorter than this part of the unit: the unit is suspected."""


def time_note(run: OfflineRun, dataset: Dataset) -> str | None:
    """What is wrong with the unit of time: by the usual step of the log nothing is left of a reward, or all of it."""
    config = run.algorithm
    if not (isinstance(config, OfflineDQNConfig) and config.use_time_diff and 0 < config.gamma < 1):
        return None
    first = slice(0, _TIMES)
    times = dataset.column("time_diff")[first][dataset.column("continues")[first] != 0]
    if not len(times):
        return None
    usual = float(np.median(times))
    steps = usual / config.time_diff_unit
    discount = config.gamma**steps
    if discount < _FORGETS and steps > 1:
        effect = "rewards after the first hardly count"
    elif steps < _LASTS:
        effect = "rewards are hardly discounted"
    else:
        return None
    return (
        f"a usual step of the log lasts {usual:g}; with time_diff_unit={config.time_diff_unit:g} and "
        f"gamma={config.gamma:g} that is a discount of {discount:.6g}: {effect}; is the unit right?"
    )


def overlap_note(dataset: Dataset, eval_dataset: Dataset) -> str | None:
    """How many rows of the evaluation data the policy learns from, if any.

    Rows are the same if trajectory, place, state and reward are. Of large data only a part is compared: the keys are
    hashes, so rows whose keys lie in one range are a sample of both.
    """
    largest = max(len(dataset), len(eval_dataset))
    limit = (1 << 64) * min(_COMPARED, largest) // max(largest, 1)
    (keys, rows), (eval_keys, eval_rows) = (_keys_below(data, limit) for data in (dataset, eval_dataset))
    _, ours, theirs = np.intersect1d(keys, eval_keys, return_indices=True)
    same = np.ones(len(ours), np.bool_)
    for name in ("state", "reward"):
        equal = dataset.column(name)[rows[ours]] == eval_dataset.column(name)[eval_rows[theirs]]
        same &= equal.all(axis=tuple(range(1, equal.ndim)))
    if not (common := int(same.sum())):
        return None
    compared = "" if len(eval_rows) == len(eval_dataset) else " that were compared"
    return (
        f"{common} of {len(eval_rows)} rows of eval_data{compared} are rows of data, too: the policy learns from them, "
        "so that its estimates are optimistic"
    )


def _keys_below(dataset: Dataset, limit: int) -> tuple[NDArray[np.uint64], Index]:
    """The first words of keys below a limit [n], and their rows [n], read in bounded memory."""
    keys, found, rows = dataset.column("key"), [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for start in range(0, len(dataset), _READ):
        first = keys[start : start + _READ][:, 0]
        chosen = np.flatnonzero(first <= np.uint64(limit - 1))
        found.append(first[chosen])
        rows.append(start + chosen)
    return np.concatenate(found), np.concatenate(rows)
