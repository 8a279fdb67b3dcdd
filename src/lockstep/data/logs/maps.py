"""Maps of a log, `{id: value}` in every row, as one column of numbers for each id.

Shapes: n rows, K ids.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn, cast

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from lockstep.data.logs.column_names import ACTIONS, NUMBERS
from lockstep.errors import ConfigError

_MOST_FIELDS = 256
_DENSE = 0.3  # share of ids in an average row from which a struct is faster than a dict
_MAPS = msgspec.json.Decoder(list[dict[str, float | None] | None])
_MAP = msgspec.json.Decoder(dict[str, float | None] | None)
_KEY_VALUE = {"key", "value"}


@dataclass(frozen=True, slots=True)
class SourceRows:
    """The file and the row numbers from which n rows were read, for error messages."""

    path: Path
    row: NDArray[np.int64]
    """[n] line or row number in the file, from 1."""

    def refuse(self, index: int, what: str) -> NoReturn:
        """Raise `ConfigError` about row `index`."""
        raise ConfigError(f"{self.path}, row {self.row[index]}: {what}")

    def refuse_first(self, bad: pl.Series, what: Callable[[int], str]) -> None:
        """Raise `ConfigError` about the first row where `bad` is true, if there is one."""
        if bad.any():
            row = int(cast(int, bad.arg_max()))
            self.refuse(row, what(row))

    def take(self, index: NDArray[np.int64]) -> "SourceRows":
        """Select some of these rows, which may repeat."""
        return SourceRows(self.path, self.row[index])


@dataclass(frozen=True, slots=True)
class Maps:
    """One map in each of n rows."""

    ids: tuple[str, ...]
    values: NDArray[np.float64]
    """[n, K]; NaN: absent."""
    given: NDArray[np.bool_]
    """[n] whether the row has a map, possibly an empty one."""

    @classmethod
    def of_columns(cls, ids: tuple[str, ...], values: NDArray[np.float64], *, optional: bool) -> "Maps":
        """Maps with a column for each id; `optional`: a row without any number has none, as one without an action."""
        given = ~np.isnan(values).all(1) if optional else np.ones(len(values), np.bool_)
        return cls(ids, values, np.asarray(given, np.bool_))

    @property
    def filled(self) -> NDArray[np.bool_]:
        """[n] whether the map has any value."""
        return np.asarray(~np.isnan(self.values).all(1), np.bool_)

    def columns(self, prefix: str) -> dict[str, pl.Series]:
        """A column for each id."""
        return {
            prefix + name: pl.Series(prefix + name, np.ascontiguousarray(self.values[:, k]), nan_to_null=True)
            for k, name in enumerate(self.ids)
        }

    def check(self, where: SourceRows, name: str) -> "Maps":
        """The maps, unchanged. Raises `ConfigError` for an infinite value."""
        if (bad := np.isinf(self.values)).any():
            row, k = (int(i) for i in np.argwhere(bad)[0])
            way = way_out(name == "metrics", "leave it out")
            where.refuse(row, f"{name}[{self.ids[k]}] is {self.values[row, k]}; {way}")
        return self


class MapDecoder:
    """Decodes maps from JSON.

    Known ids become fields of a struct, which is decoded twice as fast as a dict. Dicts are decoded for new ids, and
    where rows have few of many ids.
    """

    def __init__(self) -> None:
        self._ids: tuple[str, ...] = ()
        self._get: list[Any] = []
        self._decoder: Any = None

    def __call__(self, texts: Sequence[Any], where: SourceRows, name: str) -> Maps:
        """Read the JSON of n maps (bytes or `msgspec.Raw`); `null` is no map."""
        text = b"[" + b",".join(texts) + b"]"
        if self._decoder is not None:
            try:
                found = self._decoder.decode(text)
            except ValueError:
                pass  # a new id, or an error that is reported below
            else:
                return self._dense(found).check(where, name)
        try:
            maps = maps_of_dicts(_MAPS.decode(text))
        except ValueError:
            for i, one in enumerate(texts):
                try:
                    _MAP.decode(one)
                except ValueError as error:
                    said, way = error_text(error), "it must be a map of ids to numbers"
                    if "Expected `float" in said and name not in ACTIONS:
                        way = must_be_number(name, truth="`bool`" in said)
                    where.refuse(i, f"{name}: {said}; {way}")
            raise
        self._learn(maps)
        return maps.check(where, name)

    def _dense(self, found: list[Any]) -> Maps:
        given = np.ones(len(found), np.bool_)
        if None in found:
            given = np.array([one is not None for one in found])
            nothing = self._decoder.decode(b"[{}]")[0]
            found = [nothing if one is None else one for one in found]
        values = np.empty((len(found), len(self._ids)))
        for k, get in enumerate(self._get):
            values[:, k] = np.array([*map(get, found)], np.float64)
        return Maps(self._ids, values, given)

    def _learn(self, maps: Maps) -> None:
        ids = tuple(dict.fromkeys((*self._ids, *maps.ids)))
        known = np.count_nonzero(~np.isnan(maps.values))
        self._ids, self._decoder = ids, None
        if not ids or len(ids) > _MOST_FIELDS or known < _DENSE * len(ids) * np.count_nonzero(maps.given):
            return
        names = [f"f{k}" for k in range(len(ids))]
        fields = [
            (field, float | None, msgspec.field(default=float("nan"), name=name))
            for field, name in zip(names, ids, strict=True)
        ]
        try:
            made = msgspec.defstruct("Map", cast(Any, fields), forbid_unknown_fields=True, gc=False, eq=False)
        except ValueError:  # an id with a quotation mark or the like
            return
        self._get = [*map(attrgetter, names)]
        self._decoder = msgspec.json.Decoder(list[made | None])


def maps_of_dicts(dicts: Sequence[dict[str, float | None] | None]) -> Maps:
    """Maps from dicts; a value of None is absent."""
    given = np.array([one is not None for one in dicts], np.bool_)
    rows = [one or {} for one in dicts]
    ids = dict.fromkeys(chain.from_iterable(rows))
    column = {name: k for k, name in enumerate(ids)}
    counts = np.fromiter(map(len, rows), np.int64, len(rows))
    row, total = np.repeat(np.arange(len(rows)), counts), int(counts.sum())
    which = np.fromiter(map(column.__getitem__, chain.from_iterable(rows)), np.int64, total)
    values = np.full((len(rows), len(ids)), np.nan)
    values[row, which] = np.array(list(chain.from_iterable(one.values() for one in rows)), np.float64)
    return Maps(tuple(ids), values, given)


def maps_of_series(series: pl.Series, where: SourceRows, name: str) -> Maps:
    """Maps from a column of a table: a MAP, a list of key and value, a struct with a field per id, or JSON text."""
    dtype = series.dtype
    if dtype == pl.Null:
        return Maps((), np.empty((len(series), 0)), np.zeros(len(series), np.bool_))
    if is_text(dtype):
        texts = [b"null" if not text else text.encode() for text in series.cast(pl.String).to_list()]
        return MapDecoder()(texts, where, name)
    if isinstance(dtype, pl.Struct):
        return _of_struct(series, where, name)
    entries = as_entries(series)
    if entries is None:
        raise ConfigError(f"{where.path}: column {name} is {dtype}; it must be a map of ids to numbers")
    return _of_entries(entries, where, name)


def as_entries(series: pl.Series) -> pl.Series | None:
    """A MAP column, or one of lists of key and value, as the latter; None for any other."""
    kind: Any = getattr(pl, "Map", None)  # older versions of polars read a MAP as a list
    if kind is not None and isinstance(series.dtype, kind):
        entry: Any = series.dtype
        series = series.cast(pl.List(pl.Struct({"key": entry.key, "value": entry.value})))
    inner = series.dtype.inner if isinstance(series.dtype, pl.List) else None
    is_pair = isinstance(inner, pl.Struct) and {field.name for field in inner.fields} == _KEY_VALUE
    return series if is_pair else None


def numbers(series: pl.Series, where: SourceRows, name: str, *, needed: bool = False) -> NDArray[np.float64]:
    """A column of numbers as float64, NaN where there is none. Raises `ConfigError` for text and for NaN.

    `needed`: every decision has one, so an empty cell is no way out.
    """
    if not (series.dtype.is_numeric() or series.dtype == pl.Null):
        what = must_be_number(name, truth=series.dtype == pl.Boolean)
        raise ConfigError(f"{where.path}: column {name} is {series.dtype}; {what}")
    series = series.cast(pl.Float64)
    bad = (series.is_nan() | series.is_infinite()).fill_null(value=False)
    where.refuse_first(bad, lambda row: f"{name} is {series[row]}; {way_out(needed)}")
    return np.asarray(series.to_numpy(), np.float64)


def must_be_number(name: str, *, truth: bool) -> str:
    """What to do about a value that is none; `truth`: it is true or false."""
    if truth:
        return "it must be a number: write 1 and 0"
    more = "" if name in NUMBERS else "; of a category log one for each value, 1 or 0"
    return f"it must be a number{more}"


def way_out(needed: bool, empty: str = "leave it empty") -> str:
    """What to do about a number that is none."""
    if needed:
        return "every decision needs one: correct it, or leave the trajectory out"
    return f"{empty} if it is not known"


def is_text(dtype: Any) -> bool:
    """Whether a column holds text in any encoding."""
    return dtype in (pl.String, pl.Categorical, pl.Enum)


def error_text(error: Exception) -> str:
    """The message of a msgspec error, without the path; with the way out where the text is not UTF-8."""
    if isinstance(error, UnicodeDecodeError):
        return f"is not text in UTF-8 ({error.reason}); save the file as UTF-8"
    return str(error).partition(" - at `")[0]


def _of_struct(series: pl.Series, where: SourceRows, name: str) -> Maps:
    fields = [field.name for field in cast(pl.Struct, series.dtype).fields]
    needed = name == "metrics"
    values = [numbers(series.struct.field(field), where, f"{name}[{field}]", needed=needed) for field in fields]
    made = np.column_stack(values) if values else np.empty((len(series), 0))
    return Maps(tuple(fields), made, series.is_not_null().to_numpy())


def _of_entries(series: pl.Series, where: SourceRows, name: str) -> Maps:
    if (alike := _uniform(series)) is not None:
        return alike
    given = series.is_not_null().to_numpy()
    inner, row = flatten(series)
    keys = inner.struct.field("key")
    if keys.null_count():
        where.refuse(int(row[cast(int, keys.is_null().arg_max())]), f"{name} has an id that is null")
    value = numbers(inner.struct.field("value"), where.take(row), name, needed=name == "metrics")
    ids = keys.unique(maintain_order=True)
    if keys.dtype.is_integer():
        order = np.argsort(known := ids.to_numpy())
        which = order[np.searchsorted(known[order], keys.to_numpy())]
    else:
        which = keys.cast(pl.String).cast(pl.Enum(ids.cast(pl.String))).to_physical().to_numpy()
    values = np.full((len(series), len(ids)), np.nan)
    values[row, which] = value
    seen = np.zeros(values.shape, np.bool_)
    seen[row, which] = True
    if np.count_nonzero(seen) < len(row):
        pairs = row * len(ids) + which
        order = np.argsort(pairs, kind="stable")
        twice = int(order[1:][np.diff(pairs[order]) == 0].min())
        where.refuse(int(row[twice]), f"{name} has the id {keys[twice]} twice; leave one out")
    return Maps(tuple(ids.cast(pl.String).to_list()), values, given)


def _uniform(series: pl.Series) -> Maps | None:
    """Maps with equal ids in equal order and no missing values, which only need a reshape; None for others.

    Errors are left to the general path.
    """
    counts = series.list.len().to_numpy()  # of floats, with NaN, if any is null
    width = int(counts[0]) if len(counts) and counts[0] > 0 else 0
    if not width or (counts != width).any():
        return None
    inner = series.explode()
    keys, value = inner.struct.field("key"), inner.struct.field("value")
    ids = keys.head(width)
    if keys.null_count() or value.null_count() or not value.dtype.is_numeric() or ids.n_unique() < width:
        return None
    if not repeats(keys, width):
        return None
    values = np.asarray(value.cast(pl.Float64).to_numpy(), np.float64)
    if not np.isfinite(values).all():
        return None
    names = tuple(ids.cast(pl.String).to_list())
    return Maps(names, values.reshape(len(counts), width), np.ones(len(counts), np.bool_))


def repeats(series: pl.Series, width: int) -> bool:
    """Whether the first `width` values repeat throughout; none is null."""
    return bool((series.slice(width) == series.slice(0, max(len(series) - width, 0))).all())


def flatten(lists: pl.Series) -> tuple[pl.Series, NDArray[np.int64]]:
    """The items of n lists [m], and the row of each [m]."""
    counts = lists.list.len().fill_null(0).to_numpy().astype(np.int64)
    some = counts > 0
    filled = lists if some.all() else lists.filter(pl.Series(some))
    return filled.explode(), np.repeat(np.arange(len(lists)), counts)
