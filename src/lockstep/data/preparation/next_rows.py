"""The next state and action of each logged decision (Gauci et al., 2018, arXiv:1811.00260, use a Spark job).

Rows are ordered by trajectory and sequence number. The rules:

- The next row of a trajectory follows. Logged `next_*` columns must equal it; they are used where no row follows. If
  they differ and the logged `time_diff` does not lead to the next row, a row is missing from the log: then the logged
  columns are used, and no row follows.
- A row without an action is only a state. It must be the last of its trajectory.
- The last decision of a trajectory is terminal if the log marks it. The mark is the first of these that the log has:
  `terminated` (or not `truncated`), an empty `possible_next_actions`, an empty `possible_actions`, no `next_action`, no
  next state. A final state without an action is terminal if it has no possible actions. In a log without marks, the
  last decision of every trajectory is terminal.
- With a limit of N steps, a trajectory that ends with its N-th decision was truncated: it is not terminal, unless
  `terminated` is true, or `truncated` false in a log without `terminated`: an episode may end with its last step.
- A decision that is not terminal and whose next state is unknown is left out, and counted.
- Missing or empty possible actions of a decision are the `possible_next_actions` of the previous row, or else the list
  that all rows of the log share. Without either they stay unknown, and are counted.
- The time to the next decision is logged, or the difference of sequence numbers, or 1 where nothing follows.

Shapes: n rows of whole trajectories, in order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lockstep.data.logs.column_names import LISTS
from lockstep.data.preparation.blocks import Block
from lockstep.data.preparation.contradictions import (
    RowName,
    check_lists,
    check_marks,
    check_next,
    check_numbers,
    check_once,
    steps_to_next,
)
from lockstep.data.preparation.hashing import Words
from lockstep.data.preparation.lists import Lists, concatenate
from lockstep.errors import ConfigError

Bools = NDArray[np.bool_]
Index = NDArray[np.int64]
Mark = Literal["terminated", "possible_next_actions", "possible_actions", "next_action", "next_state", "last_row"]


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of a whole log that determine which rows are terminal."""

    mark: Mark
    max_episode_steps: int | None = None
    shared_list: NDArray[Any] | None = None
    """Items of the list of actions that all rows share; None if lists differ."""


@dataclass(slots=True, kw_only=True)
class NextRows:
    """The successor of each row of whole trajectories, in order."""

    first: Bools
    """[n], whether the row begins a trajectory."""
    kept: Bools
    """[n], whether it is a decision with a known outcome."""
    following: Index
    """[n], the next row; -1 where none was logged."""
    terminal: Bools
    """[n], whether it is a terminal decision."""
    continues: Bools
    """[n], whether it and the next row are kept."""
    time_diff: NDArray[np.float64]
    """[n], time to the next decision."""
    lists: Lists
    """The possible actions of each row; index -1 where unknown."""
    next_index: Index
    """[n], the list of possible next actions; -1 where unknown or terminal."""
    cut: int
    """Trajectories truncated by the step limit."""
    left_out: int
    """Decisions with an unknown outcome."""
    gaps: int
    """Rows whose next row is missing from the log."""
    single_steps: int
    """Rows whose next row has the next sequence number."""
    longer_steps: int
    """Rows whose next row has a larger one, except where the logged `time_diff` says so."""
    filled: int
    """Decisions whose possible actions were missing or empty, and filled in."""
    unknown: int
    """Decisions whose possible actions nothing tells."""
    final_states: int
    """Terminal decisions that a row without an action follows, of which no list says whether anything is possible."""
    lengths: Index
    """Decisions of each trajectory."""


def order(block: Block) -> Index:
    """Indices that sort rows by trajectory, then by sequence number."""
    first, second, number = (block.columns[name] for name in ("hash_0", "hash_1", "sequence_number"))
    found = np.lexsort((number, first))
    same = first[found[1:]] == first[found[:-1]]
    if (second[found[1:]] != second[found[:-1]])[same].any():  # two trajectories with an equal first hash
        found = np.lexsort((number, second, first))
    return found


def next_rows(block: Block, rules: Rules, where: RowName, hashes: Callable[[Any], Words]) -> NextRows:
    """Find the successor of each row of whole trajectories, in order; the block has an entry for each of `LISTS`.

    `where` names the file and the row of the log that a row is from; `hashes` gives lanes [2, m] of the items of lists.

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
    has_list, has_next_list = lists.lengths > 0, next_lists.lengths > 0
    ends = decision & ~onward & ~gaps
    terminal = _terminal(block, rules, ends, (following >= 0, has_list, has_next_list))
    if rules.mark == "terminated" and "terminated" in columns:
        terminal |= decision & gaps & (columns["terminated"] == 1)  # the row itself says that nothing follows
    check_marks(columns, onward, where)
    over = _marked(columns, following >= 0, null=False)
    at_limit = _at_limit(decision, first, ends & ~over, rules.max_episode_steps, where)
    terminal &= ~at_limit
    known = columns.get("has_next_state", np.zeros(rows, np.bool_)) | (following >= 0)
    kept = decision & (terminal | known)
    continues = np.zeros(rows, np.bool_)
    continues[goes_on] = kept[goes_on] & kept[goes_on + 1]
    check_numbers(block, kept, where)
    own_index, next_index = _possible(lists, next_lists, following, shared)
    next_index[terminal] = -1
    unknown = int((decision & (own_index < 0)).sum())
    begins = np.flatnonzero(first)
    single_steps, longer_steps = _steps(columns, goes_on)
    return NextRows(
        first=first,
        kept=kept,
        following=following,
        terminal=terminal,
        continues=continues,
        time_diff=_time_diff(columns, following),
        lists=Lists(own_index, lists.offsets, lists.items),
        next_index=next_index,
        cut=int(at_limit.sum()),
        left_out=int((decision & ~kept).sum()),
        gaps=int((gaps & ~terminal).sum()),
        single_steps=single_steps,
        longer_steps=longer_steps,
        filled=int((decision & ~has_list).sum()) - unknown,
        unknown=unknown,
        final_states=int((lists.index[following[terminal & (following >= 0)]] < 0).sum()),
        lengths=np.add.reduceat(decision, begins, dtype=np.int64) if rows else np.zeros(0, np.int64),
    )


def _last(block: Block, where: RowName) -> Bools:
    """Rows that end a trajectory."""
    first, second = block.columns["hash_0"], block.columns["hash_1"]
    last = np.ones(len(block), np.bool_)
    last[:-1] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    check_once(block, last, where)
    return last


def _terminal(block: Block, rules: Rules, ends: Bools, known: tuple[Bools, Bools, Bools]) -> Bools:
    """Decisions at the end of a trajectory (`ends` [n]) that are marked as terminal.

    `known`, [n] each: whether a row follows, has possible actions, has possible next actions.
    """
    columns, rows = block.columns, len(block)
    follows, has_list, has_next_list = known
    after = np.minimum(np.arange(1, rows + 1), rows - 1)
    absent = np.zeros(rows, np.bool_)
    if rules.mark == "terminated":
        return ends & _marked(columns, follows, null=True)
    marked = {
        "possible_next_actions": ~has_next_list,
        "possible_actions": ~has_list,
        "next_action": ~columns.get("has_next_action", absent),
        "next_state": ~columns.get("has_next_state", absent),
        "last_row": ~absent,
    }[rules.mark]
    return ends & np.where(follows, ~has_list[after], marked)


def _marked(columns: dict[str, NDArray[Any]], follows: Bools, *, null: bool) -> Bools:
    """Rows [n] that end an episode by `terminated`, or by `truncated` in a log without it, where `null` may do so."""
    rows = len(follows)
    after = np.minimum(np.arange(1, rows + 1), rows - 1)
    terminated, truncated = (columns.get(name, np.full(rows, -1, np.int8)) for name in ("terminated", "truncated"))
    if "terminated" in columns:
        return (terminated == 1) | (follows & (terminated[after] == 1))
    return ((truncated == 0) | (null & (truncated == -1))) & ~(follows & (truncated[after] == 1))


def _at_limit(decision: Bools, first: Bools, ends: Bools, limit: int | None, where: RowName) -> Bools:
    """Last decisions of trajectories that reached the step limit, of those that `ends` [n] holds."""
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


def _steps(columns: dict[str, NDArray[Any]], goes_on: Index) -> tuple[int, int]:
    """How many rows, of those that a row follows, have a sequence number that is one smaller, and how many others."""
    step = steps_to_next(columns, goes_on)
    single = step == 1
    told = columns["time_diff"][goes_on] == step if "time_diff" in columns else np.zeros(len(step), np.bool_)
    return int(single.sum()), int((~single & ~told).sum())


def _time_diff(columns: dict[str, NDArray[Any]], following: Index) -> NDArray[np.float64]:
    found = np.ones(len(following))
    goes_on = np.flatnonzero(following >= 0)
    found[goes_on] = steps_to_next(columns, goes_on)
    if (logged := columns.get("time_diff")) is not None:
        found = np.where(np.isnan(logged), found, logged)
    return found


def _lists(block: Block, rules: Rules) -> tuple[Lists, Lists, int]:
    """Possible actions and possible next actions in one table of lists, and the index of the shared list (or -1)."""
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


def _possible(own: Lists, next_lists: Lists, following: Index, shared: int) -> tuple[Index, Index]:
    """Indices of possible actions and possible next actions, with missing ones filled in; -1 where unknown."""
    index = np.where(own.lengths > 0, own.index, -1)
    next_index = np.where(next_lists.lengths > 0, next_lists.index, -1)
    at = np.flatnonzero(following >= 0)
    next_index[at] = index[at + 1] = np.where(index[at + 1] < 0, next_index[at], index[at + 1])
    index[index < 0] = shared
    next_index[next_index < 0] = shared
    return index, next_index
