"""Actions of a log: names (logged as names, indices or one-hot lists), or numbers (maps of features, or lists).

Shapes: n rows, U distinct texts, A actions, K numbers of an action.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from lockstep.data.logs.maps import MapDecoder, Maps, SourceRows, as_entries, error_text, is_text, maps_of_series
from lockstep.errors import ConfigError

Actions = Maps | pl.Series
"""The action of each row: features if parametric, otherwise names (String, null: none)."""
CONTINUOUS = "a continuous action is a list of numbers, or columns of them: --columns FILE with action: [action]"
"""How a log says that a number is an action itself, not the index of one."""
_NUMBERS = msgspec.json.Decoder(list[list[float] | None])
_WHOLE_FLOAT = re.compile(r"^([0-9]+)\.0+$")
_MANY = 2  # rows per distinct text from which distinct texts are decoded once


@dataclass(slots=True)
class ActionNames:
    """Names of discrete actions."""

    names: tuple[str, ...] | None = None
    """All that are valid; None: any."""
    indexed: bool = True
    """Whether `names` are in the order of indices and masks. Otherwise, and without names, action 0 is named "0"."""
    numeric_lists: bool | None = None
    """Whether a list is the numbers of a continuous action, not the one-hot list of a name. None: not known yet; the
    first lists decide."""
    like: bool = False
    """Whether the names are those of other prepared data (`--like`), and none can be added to them."""

    @property
    def by_index(self) -> tuple[str, ...] | None:
        """The names of action 0, 1 and so on; None if they are "0", "1" and so on."""
        return self.names if self.indexed else None

    def of_index(self, index: Any, where: SourceRows, row: int, column: str) -> str:
        """The name of action number `index`."""
        if isinstance(index, float) and index.is_integer():
            index = int(index)
        if isinstance(index, bool) or not isinstance(index, int):
            may_be_number = isinstance(index, float) and self.by_index is None
            what = CONTINUOUS if may_be_number else "an action is a name, an index, a one-hot list or a map"
            where.refuse(row, f"{column} is {index!r}; {what}")
        names = self.by_index
        if index < 0 or (names is not None and index >= len(names)):
            there = "indices count from 0" if names is None else f"there are {len(names)} actions"
            more = f"; {CONTINUOUS}" if names is None else ""
            where.refuse(row, f"{column} {index} is not the index of an action: {there} (write a name in quotes){more}")
        return str(index) if names is None else names[index]

    def of_cell(self, text: str) -> str:
        """The name of an action in a CSV cell, where `1` may be a name or an index; names take precedence.

        `1.0` is the index 1: where a column has empty cells, pandas writes whole numbers so.
        """
        if self.names is not None and text in self.names:
            return text
        names, index = self.by_index, _WHOLE_FLOAT.sub(r"\1", text)
        if names is None:
            return index
        return names[int(index)] if index.isdecimal() and int(index) < len(names) else text

    def names_of_mask(self, mask: Any, where: SourceRows, row: int, column: str) -> list[str]:
        """The names of the actions of a mask of 0 and 1."""
        if not all(isinstance(value, (int, float)) and value in (0, 1) for value in mask):
            where.refuse(row, f"{column} is {mask}; a list holds names, maps, or a 0 or 1 for each action")
        names = self.by_index
        if names is not None and len(mask) != len(names):
            where.refuse(row, f"{column} marks {len(mask)} actions, and there are {len(names)}: {self._first_names}")
        return [str(i) if names is None else names[i] for i, value in enumerate(mask) if value]

    def check(self, found: pl.Series, where: SourceRows, column: str) -> pl.Series:
        """The names, unchanged (String). Raises `ConfigError` for an unknown action."""
        if self.names is not None:
            known = found.is_in(self.names) | found.is_null()
            whose = " of the --like data" if self.like else ""
            way = (
                "leave out the trajectories that have it, or prepare those data again with --actions, which names it"
                if self.like
                else "name all of them in --actions (in a workflow file: actions)"
            )
            wanted = f"is not one of the actions {self._first_names}{whose}; {way}"
            where.refuse_first(~known, lambda row: f'{column} "{found[row]}" {wanted}')
        return found

    def check_no_numbers(self, text: str, where: SourceRows, row: int, column: str) -> None:
        """Raise `ConfigError` for numbers as Python prints them, which would be a name, unless names are known."""
        numbers = _printed_numbers(text) if self.names is None else None
        if numbers is not None:
            where.refuse(row, f"{column} is {text}, as Python prints a tuple or an array; write {numbers}")

    @property
    def _first_names(self) -> str:
        names = self.names or ()
        return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


class ActionDecoder:
    """Decodes actions from JSON; keeps their feature ids for later rows."""

    def __init__(self, names: ActionNames) -> None:
        self._names, self._maps = names, MapDecoder()

    def __call__(self, texts: Sequence[Any], where: SourceRows, column: str) -> Actions:
        """Read the JSON of n actions; `null`, an empty name and an empty map are no action."""
        codes, distinct, first = factorize(texts)
        some = next((text for text in distinct if text.strip() not in (b"null", b'""')), b"")
        if some.lstrip()[:1] == b"[" and self._lists_are_numbers(distinct):
            few = _maps_of_lists(distinct, where.take(first), column)
            return Maps(few.ids, few.values[codes], few.given[codes])
        if some.lstrip()[:1] != b"{":
            found = [self._name(text, where, int(first[i]), column) for i, text in enumerate(distinct)]
            named = pl.Series(column, found, dtype=pl.String).gather(codes)
            return self._names.check(named, where, column)
        if len(distinct) * _MANY > len(texts):
            return self._maps(texts, where, column)
        few = self._maps(distinct, where.take(first), column)
        return Maps(few.ids, few.values[codes], few.given[codes])

    def _lists_are_numbers(self, distinct: Sequence[bytes]) -> bool:
        """Whether lists are continuous actions: as known, or if any of these is not one-hot."""
        if self._names.numeric_lists is None:
            self._names.numeric_lists = not all(map(_is_one_hot, map(_decoded, distinct)))
        return self._names.numeric_lists

    def _name(self, text: bytes, where: SourceRows, row: int, column: str) -> str | None:
        try:
            value = msgspec.json.decode(text)
        except ValueError as error:
            where.refuse(row, f"{column}: {error_text(error)}")
        if isinstance(value, dict):
            where.refuse(row, f"{column} is a map, but a name in an earlier row: a log has one kind of actions")
        if isinstance(value, list):
            return one_hot(cast("list[Any]", value), self._names, where, row, column)
        if isinstance(value, str):
            if self._names.names is None and isinstance(_decoded(value.encode()), list | dict):
                where.refuse(
                    row, f"{column} is the text {value[:80]!r}; write the list or map without quotes around it"
                )
            self._names.check_no_numbers(value, where, row, column)
            return value or None
        return None if value is None else self._names.of_index(value, where, row, column)


def actions_of_series(series: pl.Series, names: ActionNames, where: SourceRows, column: str, *, text: bool) -> Actions:
    """Actions from a column of a table; `text`: of a CSV, where indices and names have the same type."""
    dtype = series.dtype
    if dtype == pl.Null:
        return pl.Series(column, [None] * len(series), dtype=pl.String)
    if is_text(dtype):
        found = series.cast(pl.String)
        found = pl.select(pl.when(found != "").then(found)).to_series().alias(column)
        some = found.drop_nulls().head(1)
        if len(some):
            names.check_no_numbers(some[0], where, int(cast(int, found.is_not_null().arg_max())), column)
        if len(some) and some[0].lstrip()[:1] in ("{", "["):
            return ActionDecoder(names)([_json(cell) for cell in found], where, column)
        if text and names.names is None:
            number = found.cast(pl.Float64, strict=False)
            where.refuse_first(
                (number.is_finite() & (number != number.round())).fill_null(value=False),
                lambda row: f"{column} is {found[row]}; {CONTINUOUS}; if it is a name, --actions A,B has all names",
            )
        if text:
            distinct = found.unique().drop_nulls()
            found = found.replace(distinct, [names.of_cell(cell) for cell in distinct])
        return names.check(found, where, column)
    if dtype.is_numeric():
        distinct = series.unique(maintain_order=True).drop_nulls()
        rows = [int(cast(int, (series == index).arg_max())) for index in distinct]
        called = [names.of_index(index, where, row, column) for index, row in zip(distinct, rows, strict=True)]
        named = series.replace_strict(distinct, called, default=None, return_dtype=pl.String).alias(column)
        return names.check(named, where, column)
    if isinstance(dtype, pl.Array) or (isinstance(dtype, pl.List) and as_entries(series) is None):
        return ActionDecoder(names)([msgspec.json.encode(row) for row in series.to_list()], where, column)
    if dtype == pl.Boolean:
        raise ConfigError(f"{where.path}: column {column} is {dtype}; an action is a name, an index, a list or a map")
    return maps_of_series(series, where, column)


def one_hot(values: list[Any], names: ActionNames, where: SourceRows, row: int, column: str) -> str | None:
    """The name of the action of a one-hot list; None if it is empty."""
    marked = names.names_of_mask(values, where, row, column) if values else []
    if values and len(marked) != 1:
        where.refuse(
            row,
            f"{column} is {values}; a list marks one action with 1, or holds the numbers of a continuous action, which "
            "--kind continuous says",
        )
    return marked[0] if marked else None


def _printed_numbers(cell: str) -> list[float] | None:
    """The numbers of a cell as Python prints tuples, `(0.1, 0.2)`, and numpy arrays, `[0.1 0.2]`; None of others."""
    cell = cell.strip()
    separator = "," if "," in cell else None
    if not cell.startswith("[" if separator is None else "("):
        return None
    try:
        numbers = [float(part) for part in cell[1:-1].split(separator) if part.strip()]
    except ValueError:
        return None
    return numbers if len(numbers) > 1 or separator is not None else None


def _maps_of_lists(texts: Sequence[bytes], where: SourceRows, column: str) -> Maps:
    """Continuous actions logged as lists of K numbers: maps with the ids `action_0`, `action_1` and so on.

    They are `action_00`, `action_01` and so on where there are more than ten.
    """
    try:
        found = _NUMBERS.decode(b"[" + b",".join(texts) + b"]")
    except ValueError:
        for i, value in enumerate(map(_decoded, texts)):
            if not isinstance(value, list | None):
                where.refuse(i, f"{column} is {value!r}, and a list of numbers in other rows: a log has one kind")
            if not _is_numbers(value):
                where.refuse(i, f"{column} is {bytes(texts[i]).decode()[:80]}; it must be a list of finite numbers")
        raise
    given = np.array([bool(numbers) for numbers in found])
    width = len(found[int(given.argmax())] or ()) if given.any() else 0
    for i, numbers in enumerate(found):
        if numbers and len(numbers) != width:
            where.refuse(i, f"{column} holds {len(numbers)} numbers, and rows before hold {width}")
    values = np.full((len(found), width), np.nan)
    values[given] = np.array([numbers for numbers in found if numbers], np.float64).reshape(-1, width)
    digits = len(str(max(width - 1, 0)))  # earlier versions ordered ids by name, and their data has these
    return Maps(tuple(f"action_{k:0{digits}}" for k in range(width)), values, given).check(where, column)


def _decoded(text: bytes) -> Any:
    """The value of a JSON text; the text itself if it is not JSON, which is reported later."""
    try:
        return msgspec.json.decode(text)
    except ValueError:
        return text


def _is_numbers(value: Any) -> bool:
    return value is None or (
        isinstance(value, list)
        and all(isinstance(one, int | float) and not isinstance(one, bool) for one in cast("list[Any]", value))
    )


def _is_one_hot(value: Any) -> bool:
    """Whether a list holds one 1 and else 0; also if it is empty, or no list."""
    if not value or not isinstance(value, list):
        return True
    values = cast("list[Any]", value)
    return all(one in (0, 1) for one in values) and sum(values) == 1


def factorize(texts: Sequence[Any]) -> tuple[NDArray[np.int64], list[bytes], NDArray[np.int64]]:
    """The code of each row's text [n], the U distinct texts, and the first row of each [U]."""
    index: dict[bytes, int] = defaultdict(count().__next__)
    codes = np.fromiter(map(index.__getitem__, map(bytes, texts)), np.int64, len(texts))
    first = np.full(len(index), len(texts))
    np.minimum.at(first, codes, np.arange(len(texts)))
    return codes, list(index), first


def _json(cell: str | None) -> bytes:
    return b"null" if cell is None else cell.encode()
