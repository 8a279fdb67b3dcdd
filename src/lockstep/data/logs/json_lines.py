"""Logs of JSON: a row in each line, or one list of rows.

Scalars are decoded by row; maps and lists are collected as text and decoded by column.
"""

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from lockstep.data.logs.actions import ActionDecoder
from lockstep.data.logs.column_names import ACTIONS, FLAGS, LISTS, MAPS, NUMBERS
from lockstep.data.logs.files import LineBlocks
from lockstep.data.logs.frame import RawRows
from lockstep.data.logs.lists import lists_of_json
from lockstep.data.logs.maps import MapDecoder, Maps, SourceRows, error_text, must_be_number, way_out
from lockstep.data.logs.schema import ALIASES, WHOLE, LogSchema
from lockstep.errors import ConfigError

_FIRST_BYTES, _LEAST_BYTES, _MOST_BYTES = 1 << 20, 1 << 16, 1 << 24
_CELLS = 1 << 23  # most numbers of a table
_MOST_ROWS = 100_000
_LARGEST_LIST = 1 << 30
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_SEVERAL_LINES = "does not have one row in each line; write it so (jq -c .), or as one list (jq -s .)"
_NULL = msgspec.Raw(b"null")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FLAG = {None: None, False: False, True: True}  # keys equal 0 and 1, too
_LOOKED_AT = 100  # rows that are searched for columns
_LEFT_OUT = "left out: "  # begins the key of a column that is not read: no row has it, and each has its default
_OTHER_NAMES = frozenset({*ALIASES, *ALIASES.values()})  # rows may have one or the other


class JsonLines:
    """Reads JSON logs of one schema; keeps feature ids for all files."""

    def __init__(self, schema: LogSchema) -> None:
        self._schema = schema
        self._maps = {name: MapDecoder() for name in MAPS}
        self._actions = {name: ActionDecoder(schema.names) for name in ACTIONS}

    def read(self, path: Path, file: int, advance: Callable[[int], None]) -> Iterator[RawRows]:
        """All rows of a file. `advance` is called with the bytes read so far."""
        blocks = LineBlocks(path, _FIRST_BYTES)
        decoder: Any = None
        own: dict[str, dict[str, str]] = {}
        available: dict[str, None] = {}
        line = 1
        for block in _blocks_of(blocks, path):
            if decoder is None:
                block = block.removeprefix(_BYTE_ORDER_MARK)
                decoder, own = self._decoder(block, path)
            lines = block.count(b"\n") + (not block.endswith(b"\n"))
            rows = _decoded(decoder, block, path, line)
            number = np.arange(line, line + lines)
            if len(rows) != lines:
                number = number[[bool(text.strip()) for text in block.split(b"\n")[:lines]]]
            if len(rows) != len(number):  # otherwise the names of rows in messages would be wrong, too
                raise ConfigError(f"{path} {_SEVERAL_LINES}")
            line += lines
            advance(blocks.done)
            if not rows:
                continue
            for name in _keys(_sample(block)):
                if name not in _OTHER_NAMES:
                    available[name] = None
            self._schema.note_others([*available], path)
            found = self._found(rows, SourceRows(path, number), file, own)
            yield found
            width = 1 + sum(2 * len(maps.ids) for maps in found.maps.values())
            wanted = min(_MOST_ROWS, _CELLS // width) * len(block) // len(rows)
            blocks.size = min(max(wanted, _LEAST_BYTES), _MOST_BYTES)

    def _decoder(self, block: bytes, path: Path) -> tuple[Any, dict[str, dict[str, str]]]:
        """A decoder of rows of this file, and the fields that are single ids of a map, by map."""
        available, schema = _keys(block.split(b"\n", _LOOKED_AT)[:_LOOKED_AT]), self._schema
        if available:
            schema.check([*available], path, lambda: _kinds(block), by_prefix=False)
        schema.check_roles()
        kinds: dict[str, Any] = {"mdp_id": str | int, "sequence_number": _Int64}
        kinds |= dict.fromkeys(NUMBERS, float | None) | dict.fromkeys(FLAGS, bool | float | None)
        fields: list[Any] = []
        own: dict[str, dict[str, str]] = {}
        read: dict[str, str] = {}
        """The field of each column."""
        for name in ("mdp_id", "sequence_number", *NUMBERS, *FLAGS, *MAPS, *ACTIONS, *LISTS):
            if columns := schema.spread_columns(name) if name in (*MAPS, *ACTIONS) else {}:
                own[name] = {}
                for key, column in columns.items():
                    if column not in read:  # two ids may have one column, and the sequence_number may be a feature
                        read[column] = f"{name}_{len(own[name])}"
                        fields.append((read[column], float | None, msgspec.field(default=None, name=column)))
                    own[name][key] = read[column]
                continue
            called = schema.column_of(name, available) or cast(str, schema.overrides.get(name, name))
            if name in schema.left_out:
                called = _LEFT_OUT + name
            read[called] = name
            required = name in ("mdp_id", "sequence_number")
            default = None if name in (*NUMBERS, *FLAGS) else _NULL
            given = msgspec.field(name=called) if required else msgspec.field(name=called, default=default)
            fields.append((name, kinds.get(name, msgspec.Raw), given))
            if called in _OTHER_NAMES and name not in schema.overrides:  # later rows may have the other name
                other = ALIASES[name] if called == name else name
                fields.append((f"{name}_", float | None, msgspec.field(name=other, default=None)))
        made = msgspec.defstruct("Row", fields, gc=False, eq=False, kw_only=True)
        return msgspec.json.Decoder(made), own

    def _found(self, rows: list[Any], where: SourceRows, file: int, own: dict[str, dict[str, str]]) -> RawRows:
        def column(name: str) -> list[Any]:
            return list(map(attrgetter(name), rows))

        found = RawRows(where, file, _scalars(column, where, second=hasattr(rows[0], "propensity_")))
        for name, prefix in MAPS.items():
            maps = _spread(column, own[name], optional=False) if name in own else self._map(column(name), where, name)
            if name == "state_features" or maps.given.any():
                found.maps[prefix] = maps
        for name in ACTIONS:
            if name in own:
                found.actions[name] = _spread(column, own[name], optional=True)
            elif not _all_null(texts := column(name)) or name == "action":
                found.actions[name] = self._actions[name](texts, where, name)
        for name in LISTS:
            if not _all_null(texts := column(name)):
                found.lists[name] = lists_of_json(texts, self._schema.names, where, name)
        return found

    def _map(self, texts: list[Any], where: SourceRows, name: str) -> Maps:
        if _all_null(texts):
            return Maps((), np.empty((len(texts), 0)), np.zeros(len(texts), np.bool_))
        return self._maps[name](texts, where, name)


def _blocks_of(blocks: LineBlocks, path: Path) -> Iterator[bytes]:
    """Blocks of lines with a row each; a file that is one list is read whole and split into lines."""
    reading = iter(blocks)
    for block in reading:
        if not block.removeprefix(_BYTE_ORDER_MARK).lstrip().startswith(b"["):
            yield block
            yield from reading
            return
        text = [block]
        for more in reading:
            text.append(more)
            if sum(map(len, text)) > _LARGEST_LIST:
                raise ConfigError(f"{path} is one list of more than 1 GiB; write its rows as lines (jq -c '.[]')")
        try:
            rows = msgspec.json.decode(b"".join(text).removeprefix(_BYTE_ORDER_MARK), type=list[msgspec.Raw])
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path} begins as a list of rows, and is not JSON ({error_text(error)})") from None
        for start in range(0, len(rows), _MOST_ROWS // 10):
            part = [msgspec.json.format(row, indent=-1) for row in rows[start : start + _MOST_ROWS // 10]]
            yield b"\n".join(part) + b"\n"


def _sample(block: bytes) -> list[bytes]:
    """The first rows of a block, and some of the others, the last one among them."""
    lines = block.rstrip().split(b"\n")
    return [*lines[:_LOOKED_AT], *lines[_LOOKED_AT :: max(len(lines) // _LOOKED_AT, 1)], lines[-1]]


def _keys(lines: Sequence[bytes]) -> dict[str, None]:
    """The columns of rows, in order; empty if they are malformed, which is reported later."""
    found: dict[str, None] = {}
    for text in lines:
        try:
            row = msgspec.json.decode(text, type=dict[str, msgspec.Raw]) if text.strip() else {}
        except (ValueError, RecursionError):
            return {}
        found |= dict.fromkeys(row)
    return found


def _kinds(block: bytes) -> dict[str, str]:
    """The kinds of the columns in the first rows: `number`, `map` or `other`."""
    found: dict[str, str] = {}
    for text in block.split(b"\n", _LOOKED_AT)[:_LOOKED_AT]:
        try:
            row: dict[str, Any] = msgspec.json.decode(text) if text.strip() else {}
        except ValueError:
            continue  # a value that is not UTF-8, in a column that may not be read
        for name, value in row.items():
            if value is not None:
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                found.setdefault(name, "number" if is_number else "map" if isinstance(value, dict) else "other")
    return found


def _decoded(decoder: Any, block: bytes, path: Path, line: int) -> list[Any]:
    """The rows of a block that begins with line `line`."""
    try:
        return decoder.decode_lines(block)
    except ValueError:
        for i, text in enumerate(block.split(b"\n")):
            if text.strip():
                _decode_one(decoder, text, SourceRows(path, np.array([line + i])))
        raise


def _decode_one(decoder: Any, text: bytes, where: SourceRows) -> None:
    try:
        decoder.decode(text)
    except msgspec.ValidationError as error:
        column = str(error).rpartition(" - at `$.")[2].rstrip("`") if " - at `$." in str(error) else ""
        said = error_text(error)
        if "missing required field" in said:
            said += "; every row needs it"
        elif "Expected `int`" in said:  # only a sequence_number must be one
            said += f"; it must be {WHOLE}"
        elif "Expected `float | null`" in said:  # null: unknown
            said += f"; {must_be_number(column, truth='`bool`' in said)}"
        elif "Expected `int | str`" in said:  # only an mdp_id must be one
            said += "; every row needs the name of its trajectory: text, or a whole number"
        elif "Expected `bool" in said:  # only a flag may be one
            said += "; it must be true or false"
        where.refuse(0, f"{column}: {said}" if column else said)
    except ValueError as error:
        if text.strip() == b"{":  # the row continues in the next line
            raise ConfigError(f"{where.path} {_SEVERAL_LINES}") from None
        where.refuse(0, _not_json(text) or f"is not JSON, or is cut off ({error_text(error)})")


class _NoNumber(str):
    """A NaN or an infinity, as it is written in JSON lines."""


def _not_json(text: bytes) -> str | None:
    """An error message if NaN or an infinity is the only reason why a row is not JSON; otherwise None."""
    import json

    try:
        row = json.loads(text, parse_constant=_NoNumber)
    except ValueError:
        return None
    for name, value in _numbers_of(row, ""):
        if isinstance(value, _NoNumber):
            way = way_out(name == "reward" or name.startswith("metrics."), "leave it out")
            return f"{name}={value} is not a number that a log may hold; {way}"
    return None


def _numbers_of(node: object, name: str) -> Iterator[tuple[str, object]]:
    """The leaves of a row, with their dotted names."""
    if isinstance(node, dict):
        for key, value in cast(dict[str, object], node).items():
            yield from _numbers_of(value, f"{name}.{key}" if name else key)
    elif isinstance(node, list):
        for value in cast(list[object], node):
            yield from _numbers_of(value, name)
    else:
        yield name, node


def _all_null(texts: list[Any]) -> bool:
    return texts.count(_NULL) == len(texts)


def _scalars(column: Callable[[str], list[Any]], where: SourceRows, *, second: bool) -> dict[str, pl.Series]:
    """Scalar columns; `second`: propensities may be named `action_probability`."""
    ids = column("mdp_id")
    ids = ids if all(type(one) is str for one in ids) else [str(one) for one in ids]
    found = {"mdp_id": pl.Series(ids, dtype=pl.String)}
    found["sequence_number"] = pl.Series(column("sequence_number"), dtype=pl.Int64)
    for name in (*NUMBERS, *FLAGS):
        values, dtype = column(name), pl.Boolean if name in FLAGS else pl.Float64
        if name == "propensity" and second:
            values = _one_of(values, column("propensity_"), where)
        if name in FLAGS and not _FLAG.keys() >= set(values):
            other = next(i for i, value in enumerate(values) if value not in _FLAG)
            where.refuse(other, f"{name} is {values[other]:g}; it must be true or false")
        if name == "reward" or values.count(None) < len(values):
            found[name] = pl.Series(map(_FLAG.get, values) if name in FLAGS else values, dtype=dtype)
    return found


def _one_of(values: list[Any], others: list[Any], where: SourceRows) -> list[Any]:
    """The propensities of rows, under either of their two names."""
    twice = (i for i, pair in enumerate(zip(values, others, strict=True)) if None not in pair)
    if (bad := next(twice, None)) is not None:
        where.refuse(bad, "has both propensity and action_probability, which mean the same; leave one out")
    return [b if a is None else a for a, b in zip(values, others, strict=True)]


def _spread(column: Callable[[str], list[Any]], fields: dict[str, str], *, optional: bool) -> Maps:
    values: NDArray[np.float64] = np.column_stack([np.array(column(name), np.float64) for name in fields.values()])
    return Maps.of_columns(tuple(fields), values, optional=optional)
