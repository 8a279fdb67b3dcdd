"""The possible actions of every row of a log: lists of names, masks, or lists of maps.

Shapes: n rows, m listed actions in total.
"""

import re
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from lockstep.data.logs.actions import ActionNames, factorize
from lockstep.data.logs.maps import (
    Maps,
    SourceRows,
    as_entries,
    error_text,
    flatten,
    is_text,
    maps_of_dicts,
    maps_of_series,
)
from lockstep.errors import ConfigError

_WHAT = "a list of names, of marks or of maps"
_FIRST = re.compile(rb"\s*\[\s*([^\s\]])")
_Lists = list[list[dict[str, float | None]] | None]
_LISTS = msgspec.json.Decoder(_Lists)
_LIST = msgspec.json.Decoder(list[dict[str, float | None]] | None)


def lists_of_json(texts: Sequence[Any], names: ActionNames, where: SourceRows, column: str) -> pl.Series:
    """Read the JSON of n lists; `null` is no list. List(String), or List(Struct) with a field for each feature."""
    codes, different, first = factorize(texts)
    some = next((found[1] for text in different if (found := _FIRST.match(text))), b"")
    if some == b"{":
        return _maps_of_json(different, where.take(first), column).gather(codes)
    found = [_names(text, names, where, int(first[i]), column) for i, text in enumerate(different)]
    made = pl.Series(column, found, dtype=pl.List(pl.String))
    children, row = flatten(made)
    _check_names(children, names, where.take(first[row]), column)
    return made.gather(codes)


def lists_of_series(series: pl.Series, names: ActionNames, where: SourceRows, column: str) -> pl.Series:
    """Lists from a column of a table: lists of names, masks, lists of maps, or JSON text."""
    dtype = series.dtype
    if dtype == pl.Null:
        return pl.Series(column, [None] * len(series), dtype=pl.List(pl.String))
    if is_text(dtype):
        texts = [cell.encode() if cell else b"null" for cell in series.cast(pl.String)]
        return lists_of_json(texts, names, where, column)
    if isinstance(dtype, pl.Array):
        series = series.arr.to_list()
    inner = series.dtype.inner if isinstance(series.dtype, pl.List) else None
    if inner is None or as_entries(series) is not None:
        raise ConfigError(f"{where.path}: column {column} is {dtype}; it must be a list of names, marks or maps")
    null = series.is_null().to_numpy()
    counts = series.list.len().fill_null(0).to_numpy().astype(np.int64)
    children, row = flatten(series)
    if children.null_count():
        where.take(row).refuse_first(children.is_null(), lambda _: f"{column} holds a null; leave it out of the list")
    if is_text(inner):
        _check_names(children.cast(pl.String), names, where.take(row), column)
        return series.cast(pl.List(pl.String)).alias(column)
    if inner == pl.Null:
        return lists(pl.Series(column, [], dtype=pl.String), counts, null)
    if inner.is_numeric() or inner == pl.Boolean:
        return _marked(children.cast(pl.Float64).to_numpy(), counts, null, (names, where, column))
    maps = maps_of_series(children, where.take(row), column)
    return lists(_struct(maps, column), counts, null)


def lists(children: pl.Series, counts: NDArray[np.int64], null: NDArray[np.bool_]) -> pl.Series:
    """Lists from their items [m] and lengths [n]; null where `null` [n] is true."""
    name, some = children.name, np.flatnonzero(counts)
    width = int(counts[some[0]]) if len(some) else 0
    if not len(some):
        filled = pl.Series(name, [], dtype=pl.List(children.dtype))
    elif (counts[some] == width).all():
        filled = children.reshape((len(some), width)).arr.to_list()
    else:
        row = pl.Series("row", np.repeat(np.arange(len(some)), counts[some]))
        filled = pl.DataFrame([row, children]).group_by("row", maintain_order=True).agg(name)[name]
    if len(some) == len(counts):
        return filled
    whole = filled.append(pl.Series(name, [[]], dtype=filled.dtype))
    index = np.full(len(counts), len(some))
    index[some] = np.arange(len(some))
    return whole.gather(pl.select(pl.when(~pl.Series(null)).then(pl.Series(index))).to_series())


def _check_names(children: pl.Series, names: ActionNames, where: SourceRows, column: str) -> None:
    """Refuse unknown names [m], and empty ones: an empty action is no action."""
    where.refuse_first(children == "", lambda _: f"{column} holds an empty name; leave it out of the list")
    names.check(children, where, column)


def _names(text: bytes, names: ActionNames, where: SourceRows, row: int, column: str) -> list[str] | None:
    try:
        found = msgspec.json.decode(text)
    except ValueError as error:
        where.refuse(row, f"{column}: {error_text(error)}; it must be {_WHAT}, in JSON")
    if found is None:
        return None
    listed = cast("list[Any]", found)
    if not isinstance(found, list) or any(isinstance(one, (dict, list)) for one in listed):
        where.refuse(row, f"{column} is {text.decode()[:80]}; it must be {_WHAT}")
    if all(isinstance(one, str) for one in listed):
        return cast("list[str]", listed)
    return names.names_of_mask(listed, where, row, column)


def _maps_of_json(texts: Sequence[bytes], where: SourceRows, column: str) -> pl.Series:
    try:
        found = _LISTS.decode(b"[" + b",".join(texts) + b"]")
    except ValueError:
        for i, text in enumerate(texts):
            try:
                _LIST.decode(text)
            except ValueError as error:
                where.refuse(i, f"{column}: {error_text(error)}; it must be a list of maps of ids to numbers")
        raise
    counts = np.fromiter((len(one or ()) for one in found), np.int64, len(found))
    maps = maps_of_dicts([one for listed in found if listed for one in listed])
    maps.check(where.take(np.repeat(np.arange(len(found)), counts)), column)
    return lists(_struct(maps, column), counts, np.array([one is None for one in found]))


def _struct(maps: Maps, name: str) -> pl.Series:
    if not maps.ids:
        return pl.Series(name, [{} for _ in maps.given], dtype=pl.Struct({}))
    return pl.DataFrame(maps.columns("")).to_struct(name)


def _marked(
    marks: NDArray[np.float64],
    counts: NDArray[np.int64],
    null: NDArray[np.bool_],
    context: tuple[ActionNames, SourceRows, str],
) -> pl.Series:
    names, where, column = context
    row = np.repeat(np.arange(len(counts)), counts)
    wrong = np.flatnonzero(~np.isin(marks, (0.0, 1.0)))
    lengths = counts[counts > 0]
    by_index = names.by_index
    odd = np.flatnonzero((counts > 0) & (counts != (len(by_index) if by_index is not None else lengths[:1].sum())))
    for bad in (*row[wrong[:1]], *odd[:1]):
        mask = [float(value) for value in marks[row == bad]]
        names.names_of_mask(mask, where, int(bad), column)
        where.refuse(int(bad), f"{column} marks {len(mask)} actions, and rows before mark {lengths[0]}")
    place = np.arange(len(marks)) - np.repeat(np.cumsum(counts) - counts, counts)
    taken = marks == 1
    width = int(counts.max(initial=0))
    called = np.array(by_index if by_index is not None else [str(i) for i in range(width)], dtype=object)
    children = pl.Series(column, called[place[taken]].tolist(), dtype=pl.String)
    names.check(children, where.take(row[taken]), column)
    return lists(children, np.bincount(row[taken], minlength=len(counts)), null)
