"""A table of a log as numpy arrays: codes of names, hashes of trajectories, distinct lists of actions.

Shapes: n rows, m items of all lists, F numbers of an item.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.data.logs.column_names import FLAGS, LISTS
from lockstep.data.preparation import lists as action_lists
from lockstep.data.preparation.hashing import float_words, hash_columns, hash_names, hash_strings
from lockstep.data.preparation.lists import Lists
from lockstep.errors import ConfigError

_MAX_NAMES = 10_000
_NUMBERS = ("state", "next_state", "metric", "reward", "propensity", "log_probability", "time_diff")


@dataclass(slots=True)
class Block:
    """Rows of a log by column.

    Columns: `hash_0`, `hash_1` (of mdp_id) uint64; `sequence_number` int64; `file` uint32 and `row` int64 (its source);
    `reward`, `time_diff`, `propensity`, `log_probability`, `state:ID`, `metric:NAME`, `next_state:ID` and, parametric,
    `action:ID` and `next_action:ID` float64, NaN where absent; discrete `action`, `next_action` int32, -1 where absent;
    `has_action`, `has_next_action`, `has_next_state` bool; `terminated`, `truncated` int8, -1 where unknown.
    """

    columns: dict[str, NDArray[Any]]
    lists: dict[str, Lists]

    def __len__(self) -> int:
        return len(self.columns["sequence_number"])

    def take(self, rows: NDArray[Any]) -> "Block":
        """Select rows."""
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        return Block(columns, {name: lists.take(rows) for name, lists in self.lists.items()})

    def with_prefix(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Columns `prefix:NAME`, by NAME."""
        return {name[len(prefix) + 1 :]: self.columns[name] for name in self.columns if name.startswith(prefix + ":")}

    def table(self, prefix: str, ids: Iterable[str]) -> NDArray[np.float64]:
        """Columns `prefix:ID` as one array [n, F]; NaN for missing columns."""
        ids = tuple(ids)
        found = np.full((len(self), len(ids)), np.nan)
        for place, name in enumerate(ids):
            if (column := self.columns.get(f"{prefix}:{name}")) is not None:
                found[:, place] = column
        return found


def concatenate(blocks: list[Block]) -> Block:
    """Concatenate blocks; a column that a block lacks is absent in its rows."""
    if len(blocks) == 1:
        return blocks[0]
    names = {name: column.dtype for block in blocks for name, column in block.columns.items()}
    columns = {
        name: np.concatenate(
            [b.columns[name] if name in b.columns else absent(dtype, len(b)) for b in blocks], dtype=dtype
        )
        for name, dtype in names.items()
    }
    present = {name: found.items for block in blocks for name, found in block.lists.items()}
    return Block(
        columns,
        {
            name: action_lists.concatenate([b.lists.get(name) or action_lists.no_lists(len(b), items) for b in blocks])
            for name, items in present.items()
        },
    )


def absent(dtype: np.dtype[Any], rows: int) -> NDArray[Any]:
    """A column [n] of rows that lack it, as `Block` defines it."""
    if dtype.kind == "f":
        return np.full(rows, np.nan)
    return np.full(rows, False if dtype.kind == "b" else -1, dtype)


@dataclass(slots=True)
class Encoder:
    """Encoding of names as numbers, shared by all frames of a log."""

    kind: str
    names: dict[str, int] = field(default_factory=dict[str, int])
    """Discrete: code of each action name, in the order of occurrence."""
    action_ids: list[str] = field(default_factory=list[str])
    """Parametric: feature columns of actions, in the order of occurrence."""

    def encode(self, frame: Any) -> Block:
        """Encode a table of `lockstep.data.logs.format`."""
        hashes = hash_strings(frame["mdp_id"])
        columns = {"hash_0": hashes[0], "hash_1": hashes[1], "sequence_number": frame["sequence_number"].to_numpy()}
        columns |= {"file": frame["_file"].to_numpy(), "row": frame["_row"].to_numpy()}
        for name in frame.columns:
            if name.partition(":")[0] in _NUMBERS:
                columns[name] = numbers(frame[name])
            elif name in FLAGS:
                columns[name] = frame[name].cast(int).fill_null(-1).to_numpy().astype(np.int8)
        if "has_next_state" in frame.columns:
            columns["has_next_state"] = frame["has_next_state"].fill_null(value=False).to_numpy()
        columns |= self._actions(frame, "action") | self._actions(frame, "next_action")
        lists = {name: self._lists(frame[name]) for name in LISTS if name in frame.columns}
        return Block({name: np.ascontiguousarray(column) for name, column in columns.items()}, lists)

    def _actions(self, frame: Any, prefix: str) -> dict[str, NDArray[Any]]:
        if self.kind == "discrete":
            if prefix not in frame.columns:
                return {}
            codes = self._codes(frame[prefix])
            return {prefix: codes, f"has_{prefix}": codes >= 0}
        found = {name: numbers(frame[name]) for name in frame.columns if name.startswith(prefix + ":")}
        self._add_action_ids(name.partition(":")[2] for name in found)
        present = [~np.isnan(column) for column in found.values()]
        return found | ({f"has_{prefix}": np.logical_or.reduce(present)} if present else {})

    def _add_action_ids(self, ids: Iterable[str]) -> None:
        self.action_ids += [name for name in ids if name not in self.action_ids]

    def _codes(self, series: Any) -> NDArray[np.int32]:
        found = self._codes_of_known(series)
        if found.null_count() > series.null_count():
            for name in series.unique().drop_nulls().sort().to_list():
                self.names.setdefault(name, len(self.names))
            if len(self.names) > _MAX_NAMES:
                raise ConfigError(
                    f"the log names more than {_MAX_NAMES} different actions ({', '.join(list(self.names)[:3])}, ...); "
                    "describe actions by features: {id: value} (--kind parametric)"
                )
            found = self._codes_of_known(series)
        return numbers(found.cast(int), -1).astype(np.int32)

    def _codes_of_known(self, series: Any) -> Any:
        """Codes of known names, null for others."""
        import polars as pl

        return series.cast(pl.Enum(list(self.names)), strict=False).to_physical()

    def _lists(self, series: Any) -> Lists:
        lengths = series.list.len().fill_null(0).to_numpy().astype(np.int64)
        logged = series.is_not_null().to_numpy()
        flat = series.explode(empty_as_null=False, keep_nulls=False)
        index = np.where(logged, np.cumsum(logged) - 1, -1)
        offsets = action_lists.offsets_of(lengths[logged])
        if self.kind == "discrete":
            if (shared := _shared_list(flat, lengths[logged])) is not None:
                offsets, codes = action_lists.offsets_of(lengths[logged][:1]), self._codes(shared.sort())
                return Lists(np.where(logged, 0, -1), offsets, codes)
            # the order in which a log names what is possible means nothing: equal sets are equal lists
            codes = self._codes(series.list.sort().explode(empty_as_null=False, keep_nulls=False))
            return action_lists.deduplicate(Lists(index, offsets, codes), _code_hashes)
        fields = flat.struct.unnest()
        self._add_action_ids(fields.columns)
        items = np.full((len(flat), len(self.action_ids)), np.nan)
        for name in fields.columns:
            items[:, self.action_ids.index(name)] = numbers(fields[name])
        return action_lists.deduplicate(Lists(index, offsets, items), lambda some: item_hashes(some, self.action_ids))


def _shared_list(flat: Any, lengths: NDArray[np.int64]) -> Any:
    """The list of names that all rows share, as in most logs; None if lists differ."""
    width = int(lengths[0]) if len(lengths) else 0
    if not width or flat.null_count() or (lengths != width).any():
        return None
    return flat.head(width) if (flat.slice(width) == flat.slice(0, len(flat) - width)).all() else None


def item_hashes(items: NDArray[np.float64], ids: Iterable[str]) -> NDArray[np.uint64]:
    """Lanes [2, m] of actions [m, F], independent of the order of columns."""
    order = sorted((name, place) for place, name in enumerate(ids))
    return hash_columns("action", [(name, float_words(items[:, place])) for name, place in order], len(items))


def _code_hashes(codes: NDArray[Any]) -> NDArray[np.uint64]:
    return hash_columns("item", [("name", codes.astype(np.uint64))], len(codes))


def name_hashes(codes: NDArray[Any], names: Mapping[str, int]) -> NDArray[np.uint64]:
    """Lanes [2, m] of actions by name [m]; -1 is no action."""
    table = np.zeros((2, len(names) + 1), np.uint64)
    table[:, : len(names)] = hash_names(sorted(names, key=lambda name: names[name])).T
    return table[:, codes]


def numbers(series: Any, absent: float = np.nan) -> NDArray[Any]:
    """A polars Series of numbers, with another number for null."""
    return series.fill_null(absent).to_numpy() if series.null_count() else series.to_numpy()
