"""Actions of a log: names (logged as names, indices or one-hot lists), or maps of features.

Shapes: n rows, U different texts of them, A actions.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from lockstep.data.logs.maps import MapDecoder, Maps, Where, as_entries, error_text, is_text, maps_of_series

Actions = Maps | pl.Series
"""One action in each row: features of parametric ones, or names (String, null: none)."""
_MANY = 2  # rows for each different text, from which texts are read once


@dataclass(frozen=True, slots=True)
class ActionNames:
    """Names of discrete actions."""

    names: tuple[str, ...] | None = None
    """In the order that indices and masks mean; `None`: any name will do, and action 0 is called "0"."""

    def of_index(self, index: Any, where: Where, row: int, column: str) -> str:
        """The name of action number `index`."""
        if isinstance(index, float) and index.is_integer():
            index = int(index)
        if isinstance(index, bool) or not isinstance(index, int):
            where.refuse(row, f"{column} is {index!r}; an action is a name, an index, a one-hot list or a map")
        if index < 0 or (self.names is not None and index >= len(self.names)):
            there = "indices count from 0" if self.names is None else f"there are {len(self.names)} actions"
            where.refuse(row, f"{column} {index} is not the index of an action: {there} (write a name in quotes)")
        return str(index) if self.names is None else self.names[index]

    def of_cell(self, text: str) -> str:
        """The name of an action in a text table, where 1 can be a name or an index: a name, if there is such a one."""
        if self.names is None or text in self.names or not text.isdecimal() or int(text) >= len(self.names):
            return text
        return self.names[int(text)]

    def names_of_mask(self, mask: Any, where: Where, row: int, column: str) -> list[str]:
        """The names of those actions that a list of 0 and 1 marks."""
        if not all(isinstance(value, (int, float)) and value in (0, 1) for value in mask):
            where.refuse(row, f"{column} is {mask}; a list holds names, maps, or a 0 or 1 for each action")
        if self.names is not None and len(mask) != len(self.names):
            where.refuse(
                row, f"{column} marks {len(mask)} actions, and there are {len(self.names)}: {self._first_names}"
            )
        return [str(i) if self.names is None else self.names[i] for i, value in enumerate(mask) if value]

    def check(self, found: pl.Series, where: Where, column: str) -> pl.Series:
        """These names (String). Raises `ConfigError` for one that is none of the actions."""
        if self.names is not None:
            known = found.is_in(self.names) | found.is_null()
            if not known.all():
                row = int(cast(int, (~known).arg_max()))
                where.refuse(
                    row,
                    f'{column} "{found[row]}" is not one of the actions {self._first_names}; '
                    "name all of them in --actions",
                )
        return found

    @property
    def _first_names(self) -> str:
        names = self.names or ()
        return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


class ActionDecoder:
    """Decodes actions from JSON; remembers their features for later rows."""

    def __init__(self, names: ActionNames) -> None:
        self._names, self._maps = names, MapDecoder()

    def __call__(self, texts: Sequence[Any], where: Where, column: str) -> Actions:
        """Read the JSON of n actions; `null`, an empty name and an empty map are none."""
        codes, different, first = factorize(texts)
        some = next((text for text in different if text.strip() not in (b"null", b'""')), b"")
        if some.lstrip()[:1] != b"{":
            found = [self._name(text, where, int(first[i]), column) for i, text in enumerate(different)]
            named = pl.Series(column, found, dtype=pl.String).gather(codes)
            return self._names.check(named, where, column)
        if len(different) * _MANY > len(texts):
            return self._maps(texts, where, column)
        few = self._maps(different, where.take(first), column)
        return Maps(few.ids, few.values[codes], few.given[codes])

    def _name(self, text: bytes, where: Where, row: int, column: str) -> str | None:
        try:
            value = msgspec.json.decode(text)
        except ValueError as error:
            where.refuse(row, f"{column}: {error_text(error)}")
        if isinstance(value, dict):
            where.refuse(row, f"{column} is a map, but a name in an earlier row: a log has one kind of actions")
        if isinstance(value, list):
            return one_hot(cast("list[Any]", value), self._names, where, row, column)
        if isinstance(value, str):
            return value or None
        return None if value is None else self._names.of_index(value, where, row, column)


def actions_of_series(series: pl.Series, names: ActionNames, where: Where, column: str, *, text: bool) -> Actions:
    """Actions from a column of a table. `text`: of a CSV, where an index cannot be told from a name by its type."""
    dtype = series.dtype
    if dtype == pl.Null:
        return pl.Series(column, [None] * len(series), dtype=pl.String)
    if is_text(dtype):
        found = series.cast(pl.String)
        found = pl.select(pl.when(found != "").then(found)).to_series().alias(column)
        some = found.drop_nulls().head(1)
        if len(some) and some[0].lstrip()[:1] in ("{", "["):
            return ActionDecoder(names)([_json(cell) for cell in found], where, column)
        if text and names.names is not None:
            different = found.unique().drop_nulls()
            found = found.replace(different, [names.of_cell(cell) for cell in different])
        return names.check(found, where, column)
    if dtype.is_numeric():
        different = series.unique().drop_nulls()
        rows = [int(cast(int, (series == index).arg_max())) for index in different]
        called = [names.of_index(index, where, row, column) for index, row in zip(different, rows, strict=True)]
        return series.replace_strict(different, called, default=None, return_dtype=pl.String).alias(column)
    if isinstance(dtype, pl.Array) or (isinstance(dtype, pl.List) and as_entries(series) is None):
        return ActionDecoder(names)([msgspec.json.encode(_plain(row)) for row in series], where, column)
    return maps_of_series(series, where, column)


def one_hot(values: list[Any], names: ActionNames, where: Where, row: int, column: str) -> str | None:
    """The name of the action that a list marks; an empty list is none."""
    marked = names.names_of_mask(values, where, row, column) if values else []
    if values and len(marked) != 1:
        where.refuse(row, f"{column} is {values}; a list marks one action with 1, a continuous action is a map")
    return marked[0] if marked else None


def factorize(texts: Sequence[Any]) -> tuple[NDArray[np.int64], list[bytes], NDArray[np.int64]]:
    """Which of the U different texts each row has [n], these texts, and the first row of each [U]."""
    index: dict[bytes, int] = defaultdict(count().__next__)
    codes = np.fromiter(map(index.__getitem__, map(bytes, texts)), np.int64, len(texts))
    first = np.full(len(index), len(texts))
    np.minimum.at(first, codes, np.arange(len(texts)))
    return codes, list(index), first


def _json(cell: str | None) -> bytes:
    return b"null" if cell is None else cell.encode()


def _plain(row: Any) -> list[Any] | None:
    return None if row is None else list(row)
