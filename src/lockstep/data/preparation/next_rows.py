"""What follows each logged decision (Gauci et al., 2018, arXiv:1811.00260, build it by a Spark job).

Rows are ordered by trajectory and sequence number. These are the rules:

- A row is followed by the next row of its trajectory. Where `next_*` columns were logged too, they must say the same;
  they count where no row follows. If they differ and the logged `time_diff` does not lead to the row that follows, the
  row between is missing from the log: then nothing follows here, and what was logged counts.
- A row without an action is no decision. It must be the last of its trajectory, and only its state counts.
- The last decision of a trajectory is terminal if the log marks it so. A mark is, whichever the log has first:
  `terminated` (or no `truncated`), an empty `possible_next_actions`, an empty `possible_actions` in that row, no
  `next_action`, no next state. A state that follows without an action is terminal where nothing was possible in it.
  In a log that marks nothing, the last decision of every trajectory is terminal.
- With a limit of N steps, a trajectory that ends with its N-th decision was cut by the limit: it is not terminal,
  whatever the log marks.
- A decision that is not terminal and whose next state is not known is left out, and counted.
- Possible actions that are missing or empty although there was a decision are those that the row before said would
  follow, or else the list that all rows of the log share, if they do.
- The time from a decision to the next is logged, or the difference of sequence numbers, or 1 where nothing follows.

Shapes: n rows of whole trajectories, in order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lockstep.data.preparation.blocks import LISTS, Block
from lockstep.data.preparation.contradictions import (
    Where,
    check_lists,
    check_marks,
    check_next,
    check_numbers,
    check_once,
)
from lockstep.data.preparation.hashing import Words
from lockstep.data.preparation.lists import Lists, concatenate
from lockstep.errors import ConfigError

Bools = NDArray[np.bool_]
Index = NDArray[np.int64]
Mark = Literal["terminated", "possible_next_actions", "possible_actions", "next_action", "next_state", "last_row"]


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides, for a whole log, which rows are terminal."""

    mark: Mark
    max_episode_steps: int | None = None
    shared_list: NDArray[Any] | None = None
    """The items of the one list of actions that the log has, if it has only one."""


@dataclass(slots=True)
class NextRows:
    """Of each row of whole trajectories, in order."""

    first: Bools
    """[n], begins a trajectory."""
    kept: Bools
    """[n], is a decision whose outcome is known."""
    following: Index
    """[n], the row after it; -1 where none was logged."""
    terminal: Bools
    """[n], a decision after which nothing follows."""
    continues: Bools
    """[n], the row after it is kept, too."""
    time_diff: NDArray[np.float64]
    """[n]."""
    lists: Lists
    """`index` is that of the possible actions of each row; -1 where they are not known."""
    next_index: Index
    """[n], which of `lists` was possible next; -1 where it is not known or nothing follows."""
    cut: int
    """Trajectories cut by the limit."""
    skipped: int
    """Decisions whose outcome is not known."""
    gaps: int
    """Rows that miss the row after them."""
    filled: int
    """Decisions whose possible actions were logged as empty or not at all, and filled in."""
    lengths: Index
    """Decisions of each trajectory."""


def order(block: Block) -> Index:
    """Rows by trajectory, then by sequence number."""
    first, second, number = (block.columns[name] for name in ("hash_0", "hash_1", "sequence_number"))
    found = np.lexsort((number, first))
    same = first[found[1:]] == first[found[:-1]]
    if (second[found[1:]] != second[found[:-1]])[same].any():  # two trajectories that share half of their hash
        found = np.lexsort((number, second, first))
    return found


def next_rows(block: Block, rules: Rules, where: Where, hashes: Callable[[Any], Words]) -> NextRows:
    """What follows each of the rows.

    Args:
        block: whole trajectories, in order, with an entry for each of `LISTS`.
        rules: of the log.
        where: names the file and line of a row, for messages.
        hashes: lanes [2, m] of the items of lists.

    Raises:
        ConfigError: rows contradict each other.
    """
    columns, rows = block.columns, len(block)
    last = _last(block, where)
    first = np.concatenate([np.ones(1, np.bool_), last[:-1]])[:rows]
    decision = columns.get("has_action", np.zeros(rows, np.bool_))
    if (bad := np.flatnonzero(~decision & ~last)).size:
        raise ConfigError(f"{where(bad[0])}: there is no action, but a row follows in its trajectory; log the action")
    following = np.where(last, -1, np.arange(1, rows + 1))
    lists, next_lists, shared = _lists(block, rules)
    gaps = check_next(block, following, where)
    check_lists(lists, next_lists, np.where(gaps, -1, following), where, hashes)
    following[gaps] = -1
    goes_on = np.flatnonzero(following >= 0)
    onward = np.zeros(rows, np.bool_)
    onward[goes_on] = decision[goes_on + 1]
    own, ahead = lists.lengths > 0, next_lists.lengths > 0
    ends = decision & ~onward & ~gaps
    terminal = _terminal(block, rules, ends, (following >= 0, own, ahead))
    check_marks(columns, onward, where)
    cut = _cut(decision, first, ends, rules.max_episode_steps, where)
    terminal &= ~cut
    known = columns.get("has_next_state", np.zeros(rows, np.bool_)) | (following >= 0)
    kept = decision & (terminal | known)
    continues = np.zeros(rows, np.bool_)
    continues[goes_on] = kept[goes_on] & kept[goes_on + 1]
    check_numbers(block, kept, where)
    own_index, next_index = _possible(lists, next_lists, following, shared)
    next_index[terminal] = -1
    begins = np.flatnonzero(first)
    return NextRows(
        first,
        kept,
        following,
        terminal,
        continues,
        _time_diff(columns, following),
        Lists(own_index, lists.offsets, lists.items),
        next_index,
        int(cut.sum()),
        int((decision & ~kept).sum()),
        int(gaps.sum()),
        int((decision & ~own).sum()),
        np.add.reduceat(decision, begins, dtype=np.int64) if rows else np.zeros(0, np.int64),
    )


def _last(block: Block, where: Where) -> Bools:
    """Rows that end a trajectory."""
    first, second = block.columns["hash_0"], block.columns["hash_1"]
    last = np.ones(len(block), np.bool_)
    last[:-1] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    check_once(block, last, where)
    return last


def _terminal(block: Block, rules: Rules, ends: Bools, known: tuple[Bools, Bools, Bools]) -> Bools:
    """Which of the decisions that end a trajectory are marked as terminal.

    `known` is whether a row follows, whether the row has possible actions, and whether it has possible next ones.
    """
    columns, rows = block.columns, len(block)
    follows, own, ahead = known
    after = np.minimum(np.arange(1, rows + 1), rows - 1)
    absent = np.zeros(rows, np.bool_)
    unknown = np.full(rows, -1, np.int8)
    if rules.mark == "terminated":
        terminated, truncated = (columns.get(name, unknown) for name in ("terminated", "truncated"))
        if "terminated" in columns:
            marked = (terminated == 1) | (follows & (terminated[after] == 1))
        else:
            marked = (truncated != 1) & ~(follows & (truncated[after] == 1))
        return ends & marked
    marked = {
        "possible_next_actions": ~ahead,
        "possible_actions": ~own,
        "next_action": ~columns.get("has_next_action", absent),
        "next_state": ~columns.get("has_next_state", absent),
        "last_row": ~absent,
    }[rules.mark]
    return ends & np.where(follows, ~own[after], marked)


def _cut(decision: Bools, first: Bools, ends: Bools, limit: int | None, where: Where) -> Bools:
    """Decisions with which a trajectory reached the limit of its steps."""
    if limit is None:
        return np.zeros(len(decision), np.bool_)
    count = np.cumsum(decision)
    begins = np.flatnonzero(first)
    before = (count - decision)[begins]
    place = count - np.repeat(before, np.diff(begins, append=len(decision)))
    if (bad := np.flatnonzero(decision & (place > limit))).size:
        raise ConfigError(
            f"{where(bad[0])}: is decision {place[bad[0]]} of its trajectory, but --max-episode-steps says {limit}"
        )
    return ends & (place == limit)


def _time_diff(columns: dict[str, NDArray[Any]], following: Index) -> NDArray[np.float64]:
    number = columns["sequence_number"]
    found = np.ones(len(number))
    goes_on = np.flatnonzero(following >= 0)
    found[goes_on] = number[goes_on + 1] - number[goes_on]
    if (logged := columns.get("time_diff")) is not None:
        found = np.where(np.isnan(logged), found, logged)
    return found


def _lists(block: Block, rules: Rules) -> tuple[Lists, Lists, int]:
    """Possible and possible next actions over one table of lists, and where in it the shared list is (-1: nowhere)."""
    rows = len(block)
    parts = [block.lists[name] for name in LISTS]
    if rules.shared_list is not None:
        parts.append(Lists(np.zeros(0, np.int64), np.array([0, len(rules.shared_list)]), rules.shared_list))
    table = concatenate(parts)
    shared = len(table.offsets) - 2 if rules.shared_list is not None else -1
    return (
        Lists(table.index[:rows], table.offsets, table.items),
        Lists(table.index[rows:], table.offsets, table.items),
        shared,
    )


def _possible(own: Lists, ahead: Lists, following: Index, shared: int) -> tuple[Index, Index]:
    """Possible actions of each row and after it, with what is missing filled in; -1 where that cannot be."""
    said = np.where(own.lengths > 0, own.index, -1)
    next_said = np.where(ahead.lengths > 0, ahead.index, -1)
    at = np.flatnonzero(following >= 0)
    found = said.copy()
    found[at + 1] = np.where(said[at + 1] < 0, next_said[at], said[at + 1])
    found[found < 0] = shared
    next_found = next_said
    next_found[at] = np.where(said[at + 1] < 0, next_said[at], said[at + 1])
    next_found[next_found < 0] = shared
    return found, next_found
