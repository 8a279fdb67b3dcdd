"""First pass over a log: names, end marks, and a sample of features.

Shapes: n rows, F features of a state, FA features of an action, m sampled actions.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.data.features import ordered
from lockstep.data.logs.column_names import LISTS
from lockstep.data.preparation.blocks import Block, Encoder, absent, concatenate
from lockstep.data.preparation.hashing import Words, absorb_, finish_
from lockstep.data.preparation.lists import pad_columns, slices
from lockstep.data.preparation.next_rows import Mark


def keys(block: Block) -> Words:
    """128-bit keys [n, 2]: hashes of trajectory and sequence number."""
    lanes = np.stack([block.columns["hash_0"], block.columns["hash_1"]])
    return finish_(absorb_(lanes, block.columns["sequence_number"].view(np.uint64))).T


class Sample:
    """The `size` rows with the smallest keys, independent of the order of the log and of its parts.

    `prefixes` are those of the columns to keep.
    """

    def __init__(self, size: int, prefixes: Sequence[str]) -> None:
        self._size, self._prefixes = size, tuple(prefixes)
        self._blocks, self._keys = list[Block](), list[Words]()
        self._held = 0
        self._limit = ~np.uint64(0)
        self._list_limits = dict[str, NDArray[np.uint64]]()
        """By the name of a column of lists: the smallest key [2] of which a list was dropped."""

    def add(self, block: Block, key: Words) -> None:
        """Add rows with keys [n, 2]."""
        near = np.flatnonzero(key[:, 0] <= self._limit)
        if not near.size:
            return
        kept = (name for name in block.columns if name.partition(":")[0] in self._prefixes)
        chosen = {name: block.columns[name][near] for name in (*kept, "sequence_number")}
        # Compact, so that a few rows do not keep the lists of all in memory.
        lists = {name: found.take(near).compact() for name, found in block.lists.items() if name in self._prefixes}
        self._blocks.append(Block(chosen, lists))
        self._keys.append(key[near])
        self._held += len(near)
        if self._held > 2 * self._size:
            self.read()

    def read(self) -> tuple[Words, Block]:
        """Kept keys and rows, ordered by key. Lists are kept for the first rows only, with at most `size` items."""
        if not self._blocks:
            raise ValueError("no row was added")
        key, block = np.concatenate(self._keys), concatenate(self._blocks)
        order = _smallest(key, self._size)
        key, block = key[order], block.take(order)
        for name, lists in block.lists.items():
            lists.index[self._too_many(name, key, lists.lengths)] = -1
            block.lists[name] = lists.compact()
        self._blocks, self._keys, self._held = [block], [key], len(key)
        if len(key) == self._size:
            self._limit = key[-1, 0]
        return key, block

    def _too_many(self, name: str, key: Words, lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Rows [n], ordered by key, whose lists are dropped.

        A dropped list no longer counts in later readings. What follows it stays dropped, as in a single reading.
        """
        found = np.cumsum(lengths) > self._size
        found[:1] = False
        if (limit := self._list_limits.get(name)) is not None:
            found |= (key[:, 0] > limit[0]) | ((key[:, 0] == limit[0]) & (key[:, 1] >= limit[1]))
        if found.any():
            self._list_limits[name] = key[int(found.argmax())]
        return found


def _smallest(key: Words, size: int) -> NDArray[np.int64]:
    """Indices of the smallest of keys [n, 2], in order; the first of equal ones."""
    first = key[:, 0]
    if len(first) > size:
        near = np.flatnonzero(first <= np.partition(first, size - 1)[size - 1])
        return near[_smallest(key[near], len(near))[:size]]
    order = np.argsort(first)
    if (first[order[1:]] == first[order[:-1]]).any():  # equal first words: the second decides
        order = np.lexsort((key[:, 1], first))
    return order


@dataclass(slots=True, kw_only=True)
class FeatureSample:
    """Raw values of some rows, from which features are identified. Samples of several nodes can be merged."""

    keys: Words
    """[n, 2], ascending."""
    state_ids: tuple[str, ...]
    state: NDArray[np.float64]
    """[n, F], NaN where absent."""
    action_ids: tuple[str, ...] = ()
    action: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    """[m, FA], not discrete: the action taken in each row, then the possible ones; of the first rows if many."""
    action_row: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """[m], ascending: the row of each action."""
    action_bounds: dict[str, tuple[float, float]] | None = None
    """Continuous: the smallest and the largest number in the whole log, by id."""


def feature_sample_of(sample: Sample, encoder: Encoder, size: int, contents: "LogContents | None") -> FeatureSample:
    """The feature sample of a log, with at most `size` actions; `contents` if its actions are continuous."""
    key, block = sample.read()
    ids = ordered(block.with_prefix("state"))
    found = FeatureSample(keys=key, state_ids=ids, state=block.table("state", ids))
    if contents is not None:
        found.action_bounds = dict(contents.action_bounds)
    if encoder.kind != "discrete":
        found.action_ids = ordered(encoder.action_ids)
        place = [encoder.action_ids.index(name) for name in found.action_ids]
        taken = np.flatnonzero(block.columns.get("has_action", np.zeros(len(block), np.bool_)))
        actions, rows = [block.table("action", found.action_ids)[taken]], [taken]
        for lists in block.lists.values():
            known = np.flatnonzero(lists.lengths > 0)
            items, _ = slices(lists.offsets, lists.index[known])
            actions.append(pad_columns(lists.items, (len(place),))[items][:, place])
            rows.append(np.repeat(known, lists.lengths[known]))
        _set_actions(found, np.concatenate(actions), np.concatenate(rows), size)
    return found


def merge_samples(samples: Sequence[FeatureSample], size: int) -> FeatureSample:
    """The sample of the union of all rows; a row that several nodes have counts once."""
    every = np.concatenate([sample.keys for sample in samples])
    _, first = np.unique(every.copy().view("u8,u8").reshape(-1), return_index=True)
    first = first[np.lexsort((every[first, 1], every[first, 0]))][:size]
    state_ids = ordered({name for sample in samples for name in sample.state_ids})
    state = np.concatenate([select_columns(sample.state, sample.state_ids, state_ids) for sample in samples])[first]
    found = FeatureSample(keys=every[first], state_ids=state_ids, state=state)
    found.action_ids = ordered({name for sample in samples for name in sample.action_ids})
    place = np.full(len(every), -1, np.int64)
    place[first] = np.arange(len(first))
    begins = np.cumsum([0] + [len(sample.keys) for sample in samples])
    rows = np.concatenate([place[begin + s.action_row] for begin, s in zip(begins, samples, strict=False)])
    actions = np.concatenate([select_columns(s.action, s.action_ids, found.action_ids) for s in samples])
    _set_actions(found, actions[rows >= 0], rows[rows >= 0], size)
    if all(sample.action_bounds is not None for sample in samples):
        found.action_bounds = {}
        for sample in samples:
            for name, bounds in (sample.action_bounds or {}).items():
                found.action_bounds[name] = _widened(found.action_bounds.get(name), bounds)
    return found


def _set_actions(sample: FeatureSample, actions: NDArray[np.float64], rows: NDArray[np.int64], size: int) -> None:
    """Set the actions of the first rows: at most `size`, but at least those of one row."""
    order = np.argsort(rows, kind="stable")
    counts = np.bincount(rows, minlength=len(sample.keys))
    kept = order[: max(int(counts[np.cumsum(counts) <= size].sum()), int(counts[counts > 0][:1].sum()))]
    sample.action, sample.action_row = actions[kept], rows[kept]


def _widened(known: tuple[float, float] | None, more: tuple[float, float]) -> tuple[float, float]:
    """The bounds that contain both."""
    return more if known is None else (min(known[0], more[0]), max(known[1], more[1]))


def select_columns(table: NDArray[Any], ids: Sequence[str], wanted: Sequence[str]) -> NDArray[np.float64]:
    """The columns of a table [n, F] with the wanted ids; NaN for an id that it lacks."""
    found = np.full((len(table), len(wanted)), np.nan)
    for place, name in enumerate(wanted):
        if name in ids:
            found[:, place] = table[:, ids.index(name)]
    return found


@dataclass(slots=True)
class LogContents:
    """Columns and lists that occur in a log."""

    columns: set[str] = field(default_factory=set[str])
    """Columns with a value in any row."""
    dtypes: dict[str, np.dtype[Any]] = field(default_factory=dict[str, np.dtype[Any]])
    """Types of the columns of all blocks, with a value or without one."""
    empty: set[str] = field(default_factory=set[str])
    """List columns with any empty list."""
    shared: NDArray[Any] | None = None
    """The first list of actions that is not empty."""
    differ: bool = False
    """Whether another list differs from it."""
    action_bounds: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """The smallest and the largest number of each feature of an action, by id."""
    num_actions: int = 0
    """Rows with an action."""
    action_counts: Counter[str] = field(default_factory=Counter[str])
    """Rows whose action has a feature, by id."""
    taken: set[int] = field(default_factory=set[int])
    """Codes of the discrete actions of rows."""
    listed: set[int] = field(default_factory=set[int])
    """Codes of the discrete actions in lists."""

    @property
    def continuous(self) -> bool:
        """Whether actions, if they are not names, are any numbers: none is listed, and all have the same features."""
        return self.shared is None and all(count == self.num_actions for count in self.action_counts.values())

    def add(self, block: Block) -> None:
        """Add some rows."""
        self.dtypes |= {name: column.dtype for name, column in block.columns.items()}
        for name, column in block.columns.items():
            if name not in self.columns and _has_any(column):
                self.columns.add(name)
        self.num_actions += int(block.columns["has_action"].sum()) if "has_action" in block.columns else 0
        if (codes := block.columns.get("action")) is not None:
            self.taken.update(np.unique(codes).tolist())
            self.listed.update(*(np.unique(lists.items).tolist() for lists in block.lists.values()))
        for name, column in block.with_prefix("action").items():
            known = column[~np.isnan(column)]
            self.action_counts[name] += len(known)
            if len(known):
                bounds = float(known.min()), float(known.max())
                self.action_bounds[name] = _widened(self.action_bounds.get(name), bounds)
        for name, lists in block.lists.items():
            lengths = np.diff(lists.offsets)
            if (lists.index >= 0).any():
                self.columns.add(name)
            if (lengths == 0).any():
                self.empty.add(name)
            self._compare(lists.items, lengths[lengths > 0])

    def complete(self, block: Block) -> None:
        """Add the columns of the log that some of its rows lack.

        What a missing column means is a question of the whole log: of a group of rows, the answer would depend on how
        many rows fit into memory.
        """
        for name, dtype in self.dtypes.items():
            if name not in block.columns:
                block.columns[name] = absent(dtype, len(block))

    def names(self, prefix: str) -> tuple[str, ...]:
        """The NAMEs of columns `prefix:NAME`, in order."""
        return ordered(name[len(prefix) + 1 :] for name in self.columns if name.startswith(prefix + ":"))

    @property
    def mark(self) -> Mark:
        """The column that marks the end of an episode; see `lockstep.data.preparation.next_rows`."""
        if self.columns & {"terminated", "truncated"}:
            return "terminated"
        if LISTS[1] in self.columns:
            return "possible_next_actions"
        if LISTS[0] in self.empty:
            return "possible_actions"
        if "has_next_action" in self.columns:
            return "next_action"
        return "next_state" if "has_next_state" in self.columns else "last_row"

    def _compare(self, items: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        if not len(lengths) or self.differ:
            return
        if self.shared is None:
            self.shared = items[: lengths[0]].copy()
        width = max(items.shape[1:], self.shared.shape[1:])
        self.shared = pad_columns(self.shared, width)
        if (lengths != len(self.shared)).any():
            self.differ = True
            return
        each = pad_columns(items, width).reshape(len(lengths), *self.shared.shape)
        same = (each == self.shared) | ((each != each) & (self.shared != self.shared))
        self.differ = not bool(same.all())


def _has_any(column: NDArray[Any]) -> bool:
    if column.dtype.kind == "f":
        return not bool(np.isnan(column).all())
    return bool((column > 0).any()) if column.dtype.kind == "b" else bool((column != -1).any())
