"""Checks for rows of a log that contradict each other. Each message names the rows.

Shapes: n rows of whole trajectories, in order.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.data.formulas import LARGEST
from lockstep.data.preparation.blocks import Block
from lockstep.data.preparation.hashing import Words, hash_lists
from lockstep.data.preparation.lists import Lists
from lockstep.errors import ConfigError

RowName = Callable[[int], str]
"""Names the file and the row of the log from which a row of the block was read."""
_Bools = NDArray[np.bool_]
_Index = NDArray[np.int64]
_TOLERANCE = 1e-5
"""Relative tolerance: a state logged twice, once in 32 bits, counts as equal."""


def steps_to_next(columns: dict[str, NDArray[Any]], rows: _Index) -> NDArray[np.uint64]:
    """How much larger the sequence number of the row after each of `rows` [m] is; it follows in the same trajectory.

    Numbers grow within a trajectory, but between two of opposite sign they may by more than int64 holds.
    """
    number = columns["sequence_number"].view(np.uint64)
    return number[rows + 1] - number[rows]


def check_once(block: Block, last: _Bools, where: RowName) -> None:
    """Reject two rows of a trajectory with the same sequence number."""
    number = block.columns["sequence_number"]
    twice = np.flatnonzero(~last[:-1] & (number[1:] == number[:-1]))
    if twice.size:
        at, file = int(twice[0]), block.columns["file"]
        seconds = ", or, if these are different decisions of one second, number them within their trajectory"
        other = (
            ", or, if these are different decisions, record one of the two files with another --seed, or give its "
            "episodes ids of their own"
        )
        raise ConfigError(
            f"{where(at + 1)}: mdp_id and sequence_number={number[at]} are those of {where(at)}; log each decision once"
            + (other if file[at] != file[at + 1] else seconds)
        )


def check_marks(columns: dict[str, NDArray[Any]], onward: _Bools, where: RowName) -> None:
    """Reject a marked end of an episode that another decision of the trajectory follows."""
    for name in ("terminated", "truncated"):
        if name in columns and (bad := np.flatnonzero(onward & (columns[name] == 1))).size:
            raise ConfigError(
                f"{where(int(bad[0]))}: {name} is true, but {where(int(bad[0]) + 1)} follows in the same trajectory; "
                "give each episode an mdp_id of its own"
            )


def check_numbers(block: Block, kept: _Bools, where: RowName) -> None:
    """Require a reward of every decision, and every metric that any row has; a metric named reward is ignored."""
    metrics = (name for name in block.columns if name.startswith("metric:") and name != "metric:reward")
    for name in ("reward", *metrics):
        column = block.columns.get(name)
        bad = np.flatnonzero(kept if column is None else kept & np.isnan(column))
        if bad.size:
            what = name.replace("metric:", "the metric ")
            raise ConfigError(f"{where(int(bad[0]))}: {what} is missing; log it for every decision")
        if column is not None and (bad := np.flatnonzero(kept & (np.abs(column) > LARGEST))).size:
            what, value = name.replace("metric:", "the metric "), float(column[bad[0]])
            raise ConfigError(f"{where(int(bad[0]))}: {what} {value:g} is too large for 32 bits; scale or correct it")


def check_next(block: Block, following: _Index, where: RowName) -> _Bools:
    """Compare logged next columns with the next row. Returns the rows [n] whose next row is missing from the log."""
    columns, rows = block.columns, len(block)
    gaps = np.zeros(rows, np.bool_)
    for logged, follows in _pairs(block):
        kind = logged.partition(":")[0]
        compared = (following >= 0) & columns[f"has_{kind}"] & ~gaps
        if kind == "next_action":
            compared[:-1] &= columns["has_action"][1:]
        at = np.flatnonzero(compared)
        absent = np.full(rows, np.nan)
        differ = at[_differ(columns.get(logged, absent)[at], columns.get(follows, absent)[at + 1])]
        if not differ.size:
            continue
        present = differ[~_missing(columns, differ)]
        if present.size:
            what = logged.replace("next_state:", "next_state_features ").replace(":", " ")
            raise ConfigError(
                f"{where(int(present[0]))}: {what} is not that of the row that follows in its trajectory "
                f"({where(int(present[0]) + 1)}); correct the log, or leave the next_ columns out"
            )
        gaps[differ] = True
    return gaps


def check_lists(
    own: Lists, next_lists: Lists, following: _Index, where: RowName, hashes: Callable[[Any], Words]
) -> None:
    """Compare logged possible next actions with the possible actions of the row that follows."""
    at = np.flatnonzero(following >= 0)
    at = at[(next_lists.lengths[at] > 0) & (own.lengths[at + 1] > 0)]
    if not at.size:
        return
    lanes = hash_lists(hashes(own.items), own.offsets)
    differ = at[lanes[0, next_lists.index[at]] != lanes[0, own.index[at + 1]]]
    if differ.size:
        raise ConfigError(
            f"{where(int(differ[0]))}: possible_next_actions are not the possible_actions of the row that follows in "
            f"its trajectory ({where(int(differ[0]) + 1)}); correct the log, or leave the next_ columns out"
        )


def _pairs(block: Block) -> list[tuple[str, str]]:
    """Pairs of columns with equal values: `next_*` of a row, and the same column of the next row."""
    found = list[tuple[str, str]]()
    for kind in ("state", "action"):
        if f"has_next_{kind}" in block.columns:
            names = (
                [""]
                if kind in block.columns
                else [":" + name for name in block.with_prefix(kind) | block.with_prefix(f"next_{kind}")]
            )
            found += [(f"next_{kind}{name}", f"{kind}{name}") for name in names]
    return found


def _missing(columns: dict[str, NDArray[Any]], rows: _Index) -> _Bools:
    """Whether the logged time to the next decision does not lead to the next row."""
    if "time_diff" not in columns:
        return np.zeros(len(rows), np.bool_)
    time = columns["time_diff"][rows]
    return ~np.isnan(time) & (time != steps_to_next(columns, rows))


def _differ(logged: NDArray[Any], follows: NDArray[Any]) -> _Bools:
    if logged.dtype.kind != "f":
        return logged != follows
    near = np.abs(logged - follows) <= _TOLERANCE * np.maximum(1.0, np.abs(follows))
    return ~(near | (np.isnan(logged) & np.isnan(follows)))
