"""Logs that are tables: Parquet and CSV."""

import csv
import io
import re
from collections.abc import Callable, Generator, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
import polars as pl
from polars.exceptions import PolarsError

from lockstep.data.logs.actions import Actions, actions_of_series
from lockstep.data.logs.column_names import ACTIONS, FLAGS, LISTS, MAPS, NUMBERS, REQUIRED, SCHEMA
from lockstep.data.logs.files import COMPRESSIONS, LineBlocks, kind_of, read_bytes
from lockstep.data.logs.frame import RawRows
from lockstep.data.logs.lists import lists_of_series
from lockstep.data.logs.maps import Maps, SourceRows, is_text, maps_of_series, must_be_number, numbers
from lockstep.data.logs.schema import WHOLE, LogSchema
from lockstep.errors import ConfigError

_MOST_ROWS, _CELLS = 100_000, 1 << 23
_LOOKED_AT = 1000  # rows that determine the width of rows
_LARGEST, _BLOCK_BYTES = 4 << 30, 1 << 18
_SEPARATORS = (",", ";", "\t")
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_T = TypeVar("_T")
_TRUE, _FALSE = ("true", "1", "1.0"), ("false", "0", "0.0")


class Tables:
    """Reads Parquet and CSV logs of one schema."""

    def __init__(self, schema: LogSchema) -> None:
        self._schema = schema

    def read(self, path: Path, file: int, advance: Callable[[int], None]) -> Iterator[RawRows]:
        """All rows of a file. `advance` is called with the approximate bytes read so far."""
        text, size = kind_of(path) == "csv", path.stat().st_size
        if not size:
            return
        try:
            table = _csv(path) if text else pl.scan_parquet(path)
            available = table.collect_schema().names()
        except (PolarsError, OSError) as error:
            raise _unreadable(path, error) from error
        self._schema.check(available, path, lambda: _kinds(table, path, text=text))
        self._schema.check_roles()
        self._schema.note_others(available, path)
        used = self._schema.used_columns(available)
        if text:
            used.add(available[-1])  # polars refuses rows with more cells only where it reads the last column
        table = table.select([name for name in available if name in used])
        total = None if text else _run(path, lambda: table.select(pl.len()).collect().item())
        # The width of the first rows sets the batch size. They are read separately: callers that stop after them
        # start no background reads.
        first = _run(path, lambda: table.head(min(_LOOKED_AT, _MOST_ROWS)).collect())
        if not len(first):
            if text and any(row for _, row in islice(_cells(path), 1, None)):
                raise ConfigError(f"{path}, row 2: a quotation mark opens a cell and is not closed")
            return
        found = self._found(first, path, 0, file, text)
        yield found
        short = text and first[available[-1]].null_count() > 0  # whether a row may have too few cells
        width = 1 + sum(2 * len(maps.ids) for maps in found.maps.values())
        done, held = len(first), int(first.estimated_size()) if total is None else 0
        for rows in _batches(path, table.slice(done), max(1, min(_MOST_ROWS, _CELLS // width))):
            yield self._found(rows, path, done, file, text)
            short = short or (text and rows[available[-1]].null_count() > 0)
            done += len(rows)
            if total is None:
                held += int(rows.estimated_size())
            advance(min(size, held) if total is None else size * done // total)
        if short and (shorter := _odd_line(path, longer=False)):
            raise ConfigError(f"{path} is cut off: {shorter}; copy it again, or complete the row")

    def _found(self, rows: pl.DataFrame, path: Path, done: int, file: int, text: bool) -> RawRows:
        """The rows after the first `done`, without the blank lines of a CSV; line 1 is its heading."""
        rows, where = _without_blank(rows, SourceRows(path, np.arange(done + 1, done + len(rows) + 1) + text), text)
        schema, available = self._schema, rows.columns
        called = {name: schema.column_of(name, available) for name in SCHEMA}
        here = {name: rows[column] for name, column in called.items() if column is not None}
        found = RawRows(where, file)
        for name in (*REQUIRED, *NUMBERS, *FLAGS):
            if name in here:
                read = _id if name == "mdp_id" else _whole if name in REQUIRED else _flag if name in FLAGS else _number
                found.scalars[name] = read(here[name], where, name, text)
        for name in (*MAPS, *ACTIONS):
            maps: Actions | None = self._map(rows, where, name, text)
            if maps is None and name in here:
                if name in ACTIONS:
                    maps = actions_of_series(here[name], schema.names, where, name, text=text)
                else:
                    maps = maps_of_series(here[name], where, name)
            if isinstance(maps, Maps) and name in MAPS:
                found.maps[MAPS[name]] = maps
            elif maps is not None:
                found.actions[name] = maps
        for name in LISTS:
            if name in here:
                found.lists[name] = lists_of_series(here[name], schema.names, where, name)
        return found

    def _map(self, rows: pl.DataFrame, where: SourceRows, name: str, text: bool) -> Maps | None:
        """A map with a column for each id; None for other columns."""
        spread = self._schema.spread_columns(name, rows.columns)
        if not spread:
            return None
        needed = name == "metrics"
        parts = [_number(rows[column], where, column, text, needed=needed) for column in spread.values()]
        values = np.column_stack([np.asarray(part.to_numpy(), np.float64) for part in parts])
        return Maps.of_columns(tuple(spread), values, optional=name in ACTIONS)


def _without_blank(rows: pl.DataFrame, where: SourceRows, text: bool) -> tuple[pl.DataFrame, SourceRows]:
    if not text:
        return rows, where
    blank = rows.select(pl.all_horizontal(pl.all().is_null())).to_series()
    if not blank.any():
        return rows, where
    return rows.filter(~blank), where.take(np.flatnonzero(~blank.to_numpy()))


def _id(series: pl.Series, where: SourceRows, name: str, text: bool) -> pl.Series:
    if series.dtype.is_integer() or is_text(series.dtype):
        return series.cast(pl.String)
    raise ConfigError(f"{where.path}: column {name} is {series.dtype}; it must be text, or a whole number")


def _whole(series: pl.Series, where: SourceRows, name: str, text: bool) -> pl.Series:
    if text:
        return _cast(series, pl.Int64(), where, name, WHOLE)
    if not series.dtype.is_integer():
        raise ConfigError(f"{where.path}: column {name} is {series.dtype}; it must be {WHOLE}")
    return _cast(series, pl.Int64(), where, name, "a whole number below 2**63")


def _number(series: pl.Series, where: SourceRows, name: str, text: bool, *, needed: bool = False) -> pl.Series:
    if text:
        series = _cast(series, pl.Float64(), where, name)
    return pl.Series(name, numbers(series, where, name, needed=needed or name == "reward"), nan_to_null=True)


def _flag(series: pl.Series, where: SourceRows, name: str, text: bool) -> pl.Series:
    if series.dtype == pl.Boolean or series.dtype == pl.Null:
        return series.cast(pl.Boolean)
    words = series.cast(pl.String).str.to_lowercase()
    known = words.is_null() | words.is_in((*_TRUE, *_FALSE))
    where.refuse_first(~known, lambda row: f"{name} is {series[row]!r}; it must be true or false")
    return words.is_in(_TRUE) & pl.select(pl.when(words.is_not_null()).then(pl.lit(value=True))).to_series()


def _cast(series: pl.Series, dtype: pl.DataType, where: SourceRows, name: str, what: str = "") -> pl.Series:
    """Text as numbers. `what` they must be; empty: any numbers."""
    made = series.cast(dtype, strict=False)
    bad = made.is_null() & series.is_not_null()
    if bad.any():
        row = int(cast(int, bad.arg_max()))
        cell = series[row]
        decimal = dtype == pl.Float64 and re.fullmatch(r"-?\d+,\d+", str(cell))
        hint = f" (with a point: {cell.replace(',', '.')})" if decimal else ""
        number = (
            "it must be a number" if decimal else must_be_number(name, truth=str(cell).lower() in ("true", "false"))
        )
        must = f"it must be {what}" if what else number
        where.refuse(row, f"{name} is {cell!r}; {must}{hint}")
    return made


def _csv(path: Path) -> pl.LazyFrame:
    """A CSV; all cells are text, empty ones null."""
    _, heading = next(_cells(path), (0, list[str]()))
    if repeated := sorted({name for name in heading if name and heading.count(name) > 1}):
        raise ConfigError(f"{path} has more than one column {', '.join(repeated)}; rename all but one, or remove them")
    source: Path | io.BytesIO = path
    if path.suffix.lower() in COMPRESSIONS:
        source, size = io.BytesIO(), 0
        for block, _ in read_bytes(path):
            size += source.write(block)
            if size > _LARGEST:
                raise ConfigError(f"{path} holds more than 4 GiB; decompress it first, to be read in parts")
        source.seek(0)
    table = pl.scan_csv(source, separator=_separator(path), infer_schema=False)
    return table.with_columns(pl.when(pl.all() != "").then(pl.all()))


def _separator(path: Path) -> str:
    """The most frequent separator of the heading; the file name decides between equally frequent ones."""
    by_name = "\t" if ".tsv" in [suffix.lower() for suffix in path.suffixes] else ","
    first, _ = next(read_bytes(path), (b"", 0))
    if b"\0" in first:
        raise ConfigError(f"{path} is not text in UTF-8; save it as UTF-8")
    if b"\r" in first and b"\n" not in first:
        raise ConfigError(f"{path} ends its lines with carriage returns alone; save it with line feeds (LF)")
    heading = _QUOTED.sub("", first.decode(errors="replace")).partition("\n")[0]
    columns = {mark: heading.count(mark) for mark in _SEPARATORS}
    return max(_SEPARATORS, key=lambda mark: (columns[mark], mark == by_name))


def _kinds(table: pl.LazyFrame, path: Path, *, text: bool) -> dict[str, str]:
    """The kinds of the columns in the first rows: `number`, `map` or `other`."""
    rows = _run(path, lambda: table.head(_LOOKED_AT).collect())
    found: dict[str, str] = {}
    for series in rows:
        some = series.drop_nulls()
        if series.dtype.is_numeric() or (
            text and len(some) and some.cast(pl.Float64, strict=False).is_not_null().all()
        ):
            found[series.name] = "number"
        elif isinstance(series.dtype, pl.Struct) or (is_text(series.dtype) and some.str.starts_with("{").all()):
            found[series.name] = "map" if len(some) else "other"
    return found


def _batches(path: Path, table: pl.LazyFrame, rows: int) -> Generator[pl.DataFrame]:
    reading = iter(_run(path, lambda: table.collect_batches(chunk_size=rows)))
    while True:
        batch = _run(path, lambda: next(reading, None))
        if batch is None:
            return
        if len(batch):
            yield batch


def _run(path: Path, call: Callable[[], _T]) -> _T:
    try:
        return call()
    except (PolarsError, OSError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> ConfigError:
    reason = str(error).partition("\n")[0]
    if kind_of(path) == "csv" and (longer := _odd_line(path, longer=True)):
        reason = longer
    if "utf-8" in reason:
        return ConfigError(f"{path} is not text in UTF-8 ({reason}); save it as UTF-8")
    if "empty CSV" in reason:
        return ConfigError(f"{path} is empty; a log has a row for each decision")
    return ConfigError(f"{path} cannot be read ({reason}); is it whole? Copy it again")


def _cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The number of the line that ends each row of a CSV, and its cells; the first row is the heading."""
    blocks = (io.StringIO(block.decode(errors="replace")) for block in LineBlocks(path, _BLOCK_BYTES))
    rows = csv.reader(chain.from_iterable(blocks), delimiter=_separator(path))
    try:
        for row in rows:
            yield rows.line_num, row
    except csv.Error as error:
        raise ConfigError(f"{path}, row {rows.line_num}: cannot be read ({error})") from None


def _odd_line(path: Path, *, longer: bool) -> str | None:
    """An error message if a row of a CSV has more cells than its heading, or fewer; otherwise None."""
    rows = _cells(path)
    _, heading = next(rows, (0, list[str]()))
    for line, row in rows:
        if row and (len(row) > len(heading) if longer else len(row) < len(heading)):
            return f"row {line} has {len(row)} cells, and the heading has {len(heading)}"
    return None
