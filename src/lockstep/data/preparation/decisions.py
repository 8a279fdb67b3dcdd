"""Columns of prepared data from ordered rows: normalized, with next states and actions.

Shapes: n rows of whole trajectories, k of them kept, t lists of m items, S numbers of a state, A actions or K numbers
of an action, M metrics, FA raw features of an action.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lockstep.data.features import Features
from lockstep.data.preparation.blocks import Block, item_hashes
from lockstep.data.preparation.identify import exceeds
from lockstep.data.preparation.lists import Lists, offsets_of, slices
from lockstep.data.preparation.next_rows import NextRows

Index = NDArray[np.int64]
Columns = dict[str, NDArray[Any]]
LEAST_PROPENSITY = float(np.finfo(np.float32).tiny)
"""What float32 cannot hold would become 0, and a ratio to it infinite."""


@dataclass(frozen=True, slots=True)
class PreparedSchema:
    """Features, metrics and actions of prepared rows."""

    state: Features
    metrics: tuple[str, ...]
    action: Features | None
    """Parametric and continuous only."""
    actions: tuple[str, ...]
    """Discrete only: their names."""
    renumbered: NDArray[np.int32]
    """Discrete only: the index of an action in prepared data, by its code while reading."""
    continuous: bool = False
    """Whether actions are any numbers within bounds, not one of a list of candidates."""

    @property
    def kind(self) -> Literal["discrete", "parametric", "continuous"]:
        """As `DatasetInfo.kind`."""
        if self.action is None:
            return "discrete"
        return "continuous" if self.continuous else "parametric"

    @property
    def sizes(self) -> tuple[int, int, int]:
        """As `DatasetInfo.sizes`."""
        return self.state.size, len(self.actions) if self.action is None else self.action.size, len(self.metrics)


@dataclass(slots=True)
class Decisions:
    """Some prepared rows.

    Attributes:
        columns: see `lockstep.data.columns`; `trajectory` counts from 0.
        kept_rows: [k], their indices among the rows of the block.
        added: rows whose action was not among the logged possible ones.
        lists: parametric: [k], the logged list of each row; -1 where the action was added to it.
    """

    columns: Columns
    kept_rows: Index
    added: int
    lists: Index


def decisions(block: Block, successors: NextRows, schema: PreparedSchema, key: NDArray[np.uint64]) -> Decisions:
    """Columns of the kept rows; `key` holds the keys of all rows [n, 2]."""
    rows = np.flatnonzero(successors.kept)
    after = successors.following[rows]
    goes_on = np.flatnonzero((after >= 0) & ~successors.terminal[rows])
    columns: Columns = {
        "terminal": successors.terminal[rows].view(np.uint8),
        "continues": successors.continues[rows].view(np.uint8),
    }
    ids = schema.state.ids
    state = schema.state.normalize(block.table("state", ids))
    columns["state"] = state.take(rows, 0)
    columns["next_state"] = _take_some(state, after, goes_on)
    logged = np.flatnonzero((after < 0) & ~successors.terminal[rows])
    if logged.size:
        ends = block.take(rows[logged])
        columns["next_state"][logged] = schema.state.normalize(ends.table("next_state", ids))
    columns |= _numbers(block, successors, schema, rows)
    columns["key"] = np.ascontiguousarray(key[rows])
    make = {"discrete": _discrete, "parametric": _parametric, "continuous": _continuous}[schema.kind]
    found, added, lists = make(block, successors, schema, rows)
    return Decisions(columns | found, rows, added, lists)


def _take_some(table: NDArray[Any], after: Index, some: Index) -> NDArray[Any]:
    """Rows `after` [k] of a table; 0 except for `some` of the k."""
    found = table.take(after, 0)
    others = np.ones(len(after), np.bool_)
    others[some] = False
    found[others] = 0
    return found


def _numbers(block: Block, successors: NextRows, schema: PreparedSchema, rows: Index) -> Columns:
    source = block.columns
    trajectory = np.cumsum(successors.first)[rows]
    change = np.ones(len(rows), np.int64)
    change[1:] = trajectory[1:] != trajectory[:-1]
    return _propensities(block, schema, rows) | {
        "reward": source["reward"][rows].astype(np.float32),
        "metrics": block.table("metric", schema.metrics)[rows].astype(np.float32),
        "time_diff": successors.time_diff[rows].astype(np.float32),
        "trajectory": np.cumsum(change) - 1,
        "sequence_number": source["sequence_number"][rows],
    }


def _propensities(block: Block, schema: PreparedSchema, rows: Index) -> Columns:
    """The probability of each action, or the logarithm of the density of a continuous one; NaN where unknown.

    The density of an action that is clipped is that of another one, and says nothing of the probability of the bound.
    """
    unknown = np.full(len(block), np.nan)
    propensity = block.columns.get("propensity", unknown)[rows]
    logarithm = block.columns.get("log_probability", unknown)[rows]
    if schema.continuous:
        density = np.where(np.isnan(logarithm), np.log(propensity), logarithm)
        return {"log_density": np.where(_clipped(block, schema)[rows], np.nan, density)}
    probability = np.where(np.isnan(propensity), np.minimum(np.exp(logarithm), 1.0), propensity)
    return {"propensity": np.maximum(probability, LEAST_PROPENSITY).astype(np.float32)}


def _clipped(block: Block, schema: PreparedSchema) -> NDArray[np.bool_]:
    """Whether any number of an action lies outside of its bounds [n]."""
    assert schema.action is not None
    table = block.table("action", schema.action.ids)
    bounds = [(feature.min_value, feature.max_value) for _, feature in schema.action.items()]
    low, high = np.array(bounds, np.float64).T
    return np.any(exceeds(table, table, low, high), axis=1)


def _next_decision(block: Block, successors: NextRows, rows: Index) -> tuple[Index, Index]:
    """Kept rows that a decision follows, and kept rows where only the log names the next action."""
    after, open_ = successors.following[rows], ~successors.terminal[rows]
    decided = block.columns["has_action"]
    follows = (after >= 0) & decided[after] & open_
    logged = block.columns.get("has_next_action", np.zeros(len(block), np.bool_))[rows] & ~follows & open_
    return np.flatnonzero(follows), np.flatnonzero(logged)


def _discrete(block: Block, successors: NextRows, schema: PreparedSchema, rows: Index) -> tuple[Columns, int, Index]:
    actions = np.append(schema.renumbered, np.int32(-1))
    action = actions[block.columns["action"]]
    follows, logged = _next_decision(block, successors, rows)
    after = successors.following[rows]
    next_action = np.full(len(rows), -1, np.int32)
    next_action[follows] = action[after[follows]]
    if logged.size:
        next_action[logged] = actions[block.columns["next_action"][rows[logged]]]
    number = len(successors.lists.offsets) - 1
    masks = np.zeros((number + 1, len(schema.actions)), np.uint8)
    masks[np.repeat(np.arange(number), np.diff(successors.lists.offsets)), actions[successors.lists.items]] = 1
    masks[number] = 1  # index -1, an unknown list: all actions are possible
    possible = masks.take(successors.lists.index, 0)  # `take` copies rows faster than an index does
    decided = np.flatnonzero(action >= 0)
    added = int((possible[decided, action[decided]] == 0).sum())
    possible[decided, action[decided]] = 1
    possible_next = masks.take(successors.next_index[rows], 0)
    possible_next[follows] = possible.take(after[follows], 0)
    possible_next[successors.terminal[rows]] = 0
    some = np.flatnonzero(next_action >= 0)
    possible_next[some, next_action[some]] = 1
    columns = {"action": action[rows], "next_action": next_action}
    columns |= {"possible_actions": possible.take(rows, 0), "possible_next_actions": possible_next}
    return columns, added, np.zeros(0, np.int64)


def _parametric(block: Block, successors: NextRows, schema: PreparedSchema, rows: Index) -> tuple[Columns, int, Index]:
    features = schema.action
    assert features is not None
    raw = block.table("action", features.ids)
    follows, logged = _next_decision(block, successors, rows)
    after = successors.following[rows]
    later = block.take(rows[logged]).table("next_action", features.ids)
    lacking = _not_listed(successors, rows[logged], later, features.ids)
    # One table of all actions: of lists, then taken ones, then logged next ones.
    normal = features.normalize(np.concatenate([successors.lists.items, raw, later]))
    taken, coming = len(successors.lists.items), len(successors.lists.items) + len(raw)
    own, index, added, lists = _own_lists(successors.lists, raw, features.ids, block.columns["has_action"], taken)
    next_own = np.full(len(rows), -1, np.int64)
    next_own[follows] = after[follows]
    next_lists = _next_lists(successors, rows, next_own, own, (logged[lacking], coming + lacking))
    next_action = _take_some(normal, taken + after, follows)
    next_action[logged] = normal[coming:]
    has_next = np.zeros(len(rows), np.uint8)
    has_next[follows] = has_next[logged] = 1
    mine, offsets = slices(own.offsets, rows)
    columns = {
        "action": normal.take(taken + rows, 0),
        "next_action": next_action,
        "has_next_action": has_next,
        "action_index": index[rows].astype(np.int32),
        "possible_actions": normal.take(own.items[mine], 0),
        "possible_actions_offsets": offsets,
        "possible_next_actions": normal.take(next_lists.items, 0),
        "possible_next_actions_offsets": next_lists.offsets,
    }
    return columns, added, lists[rows]


def _continuous(block: Block, successors: NextRows, schema: PreparedSchema, rows: Index) -> tuple[Columns, int, Index]:
    features = schema.action
    assert features is not None
    action = features.normalize(block.table("action", features.ids))
    follows, logged = _next_decision(block, successors, rows)
    after = successors.following[rows]
    next_action = _take_some(action, after, follows)
    next_action[logged] = features.normalize(block.take(rows[logged]).table("next_action", features.ids))
    has_next = np.zeros(len(rows), np.uint8)
    has_next[follows] = has_next[logged] = 1
    columns = {"action": action[rows], "next_action": next_action, "has_next_action": has_next}
    return columns, 0, np.zeros(0, np.int64)


def _own_lists(
    lists: Lists, raw: NDArray[np.float64], ids: tuple[str, ...], decided: NDArray[np.bool_], taken: int
) -> tuple[Lists, Index, int, Index]:
    """The possible actions of every row; an action taken that is not among them is appended.

    Returns lists of indices into the table of all actions; the index of the action taken in its list [n]; the number of
    rows whose list lacked it; and the logged list of each row [n], -1 where the action was appended.
    """
    lengths = lists.lengths
    known = np.flatnonzero(lengths > 0)
    items, _ = slices(lists.offsets, lists.index[known])
    row = np.repeat(known, lengths[known])
    first, second = item_hashes(lists.items, ids)
    own_first, own_second = item_hashes(raw, ids)
    equal = np.flatnonzero((first[items] == own_first[row]) & (second[items] == own_second[row]))
    begins = np.cumsum(lengths) - lengths
    equal = equal[np.diff(row[equal], prepend=-1) != 0]  # the first of equal ones
    index = lengths.copy()
    index[row[equal]] = equal - begins[row[equal]]
    missing = decided & (index == lengths)
    offsets = offsets_of(lengths + missing)
    flat = np.empty(int(offsets[-1]), np.int64)
    flat[np.arange(len(items)) + np.repeat((offsets[:-1] - begins)[known], lengths[known])] = items
    flat[offsets[1:][missing] - 1] = taken + np.flatnonzero(missing)
    whole = Lists(np.arange(len(lengths)), offsets, flat)
    return whole, index, int((missing & (lengths > 0)).sum()), np.where(missing, -1, lists.index)


def _not_listed(successors: NextRows, rows: Index, raw: NDArray[np.float64], ids: tuple[str, ...]) -> Index:
    """Those of some rows [p] whose logged next action, raw [p, FA], is not in the list of possible next actions."""
    lists = successors.lists
    which = successors.next_index[rows]
    known = np.flatnonzero(which >= 0)
    items, offsets = slices(lists.offsets, which[known])
    row = np.repeat(known, np.diff(offsets))
    same = item_hashes(lists.items[items], ids) == item_hashes(raw, ids)[:, row]
    lacking = np.ones(len(rows), np.bool_)
    lacking[row[same.all(0)]] = False
    return np.flatnonzero(lacking)


def _next_lists(successors: NextRows, rows: Index, next_own: Index, own: Lists, added: tuple[Index, Index]) -> Lists:
    """The possible actions after each kept row: those of the next decision, or else logged ones.

    `added` names some of the rows that no decision follows, and the action (of the table of all) that their logged
    lists lack, if they have any.
    """
    log, which = successors.lists, successors.next_index[rows]
    chosen = np.where(next_own >= 0, next_own, -1)
    number, listed = len(own.offsets) - 1, (next_own < 0) & (which >= 0)
    chosen[listed] = number + which[listed]
    places, coming = added
    chosen[places] = number + len(log.offsets) - 1 + np.arange(len(places))
    lost = (chosen < 0) & ~successors.terminal[rows]
    chosen[lost] = rows[lost]  # the next state has no known actions: those of the row itself
    longer = _with_one_more(log, which[places], coming)
    offsets = np.concatenate([own.offsets, own.offsets[-1] + log.offsets[1:]])
    offsets = np.concatenate([offsets, offsets[-1] + longer.offsets[1:]])
    items = np.concatenate([own.items, np.arange(len(log.items)), longer.items])
    empty = np.append(offsets, offsets[-1])
    chosen[chosen < 0] = len(empty) - 2
    take, found = slices(empty, chosen)
    return Lists(np.arange(len(rows)), found, items[take])


def _with_one_more(log: Lists, which: Index, more: Index) -> Lists:
    """Some logged lists [p], -1: an empty one, each with one more item at its end; items are their indices."""
    each = np.append(np.diff(log.offsets), 0)[which]
    offsets = offsets_of(each + 1)
    items = np.empty(int(offsets[-1]), np.int64)
    last = np.zeros(len(items), np.bool_)
    last[offsets[1:] - 1] = True
    items[last] = more
    items[~last] = slices(log.offsets, which[which >= 0])[0]
    return Lists(np.arange(len(which)), offsets, items)
