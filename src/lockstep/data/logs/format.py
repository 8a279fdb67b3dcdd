"""The schema of logs, with a row for each decision, and their reader.

| column | meaning |
|---|---|
| `mdp_id` | trajectory: an episode, a user's session; text or a whole number |
| `sequence_number` | position in the trajectory, a whole number; steps may exceed one |
| `state_features` | `{id: number}`; a missing id or null is unknown |
| `action` | discrete: a name, an index or a one-hot list; parametric: `{id: number}`; continuous: either map or list |
| `reward` | a number |
| `possible_actions` | names, a list of 0 and 1 for all actions, or a list of maps; `[]` after the end |
| `propensity` or `action_probability` | probability of the action under the logging policy, in (0, 1]; null: unknown |
| `log_probability` | its logarithm, instead of `propensity`; of continuous actions that of the density |
| `metrics` | `{name: number}`, further quantities to evaluate policies by |
| `next_state_features`, `next_action`, `possible_next_actions`, `time_diff` | of the next row; optional |
| `terminated`, `truncated` | whether the episode ended with the row, or was truncated after it; optional |
| `ds` | ignored |

Files are JSON lines or a JSON list, CSV (each plain or with .gz, .bz2, .zst) and Parquet; folders of them; Minari data
sets. In tables, maps may have a column for each id: `state:ID`, likewise `next_state:`, `action:`, `next_action:` and
`metric:`.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep.data.packages import import_optional
from lockstep.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl

    from lockstep.data.logs.frame import RawRows
    from lockstep.data.logs.schema import LogSchema

KINDS = ("discrete", "parametric", "continuous")


def read_log(
    paths: Sequence[Path | str],
    *,
    columns: Mapping[str, Any] | None = None,
    kind: str | None = None,
    actions: Sequence[str] | None = None,
    indexed: bool = True,
    like: bool = False,
) -> "Log":
    """Open a log, to be read in parts.

    Args:
        paths: files, folders (all logs in them, by name), and Minari data sets: their folders, or `minari:NAME`.
        columns: names of the columns in these files, by schema name; of maps also a list of columns, or the column of
            each id.
        kind: of `KINDS`; None: as the first actions. Maps and lists of numbers are `continuous` if no row names its
            possible actions and all have the same ids, else `parametric`.
        actions: names of discrete actions; others are rejected.
        indexed: whether `actions` are in the order of their indices; otherwise action 0 is named "0".
        like: whether these settings are those of other prepared data; for messages.

    Raises:
        ConfigError: a file is missing or empty, no row has an action, or the first rows violate the schema.
    """
    import_optional("polars", "offline")
    from lockstep.data.logs.files import find_files
    from lockstep.data.logs.schema import LogSchema

    if kind is not None and kind not in KINDS:
        raise ConfigError(f"kind={kind} is not known; there are {', '.join(KINDS)}")
    if kind in ("parametric", "continuous") and actions is not None:
        raise ConfigError(f"actions={','.join(actions)} are names, and kind={kind} has none; leave one out")
    files, in_folders = find_files([Path(path) for path in paths])
    numeric_lists = True if kind == "continuous" else False if kind else None
    schema = LogSchema.of(columns, actions, numeric_lists=numeric_lists, indexed=indexed, like=like)
    return Log(files, in_folders, schema, kind or ("discrete" if actions is not None else None))


class Log:
    """Rows of a log, in tables of bounded size.

    Columns of a table (only those with values):

    - `mdp_id` String, `sequence_number` Int64; `reward`, `propensity`, `log_probability` and `time_diff` Float64;
      `terminated`, `truncated` Boolean; `state:ID`, `next_state:ID`, `metric:NAME` Float64, null where unknown;
      `has_next_state` Boolean
    - discrete: `action`, `next_action` String; `possible_actions`, `possible_next_actions` List(String)
    - parametric: `action:ID`, `next_action:ID` Float64; the lists List(Struct) with a Float64 field for each id
    - `_file` UInt32, index into `paths`, and `_row` Int64, the line or row number from 1

    Attributes:
        paths: its files, in reading order.
        kind: `discrete` or `parametric`, the form of its actions; those of a continuous log are parametric.
        continuous: whether its actions are continuous; None: found from all rows.
        actions: the given names of discrete actions; None: any.
        total_bytes: of all files.
        done_bytes: read so far by `frames`.
    """

    def __init__(self, files: list[Path], in_folders: set[Path], schema: "LogSchema", kind: str | None) -> None:
        from lockstep.data.logs.minari import size_of

        self.paths, self._in_folders, self._schema = files, in_folders, schema
        self.actions = schema.names.names
        self._sizes = [size_of(path) for path in files]
        self.total_bytes, self.done_bytes = sum(self._sizes), 0
        self.continuous = None if kind is None else kind == "continuous"
        asked, kind = kind, "parametric" if kind == "continuous" else kind
        first = next((found for found in self._read() if found.kind), None)
        if first is None:
            raise ConfigError(f"{files[0]}: no row of the log has an action; log the action of every decision")
        if kind is not None and self.actions is None and first.kind != kind:
            raise ConfigError(_other_kind(files[0], str(asked)))
        self.kind: str = kind or str(first.kind)

    @property
    def notes(self) -> list[str]:
        """Lines for the user; grows while rows are read."""
        return self._schema.notes

    def note(self, line: str) -> None:
        """Add a line for the user, once."""
        self._schema.note(line)

    def frames(self) -> "Iterator[pl.DataFrame]":
        """All rows; may be called again. Tables have at most 100 000 rows, fewer where rows are wide.

        Raises:
            ConfigError: a row violates the schema, or a file is damaged. The message names file and row.
        """
        from lockstep.data.logs.frame import frame

        states, actions = set[str](), set[str]()
        for found in self._read():
            table = frame(found, self.kind)
            self._check_ids(found, states, actions)
            yield table

    def _read(self) -> "Generator[RawRows]":
        from lockstep.data.logs.files import kind_of
        from lockstep.data.logs.json_lines import JsonLines
        from lockstep.data.logs.minari import read_minari
        from lockstep.data.logs.tables import Tables

        json_lines, tables = JsonLines(self._schema), Tables(self._schema)
        several = sum(kind_of(path) == "minari" for path in self.paths) > 1
        done, any_rows = 0, False
        self.done_bytes = 0
        for i, path in enumerate(self.paths):

            def advance(read: int, before: int = done) -> None:
                self.done_bytes = before + read

            kind = kind_of(path)
            if kind == "minari":
                reading = read_minari(path, i, self._schema, advance, several=several)
            elif kind == "json":
                reading = json_lines.read(path, i, advance)
            else:
                reading = tables.read(path, i, advance)
            here = False
            for found in reading:
                here = any_rows = True
                yield found
            if not here and path not in self._in_folders:
                raise ConfigError(f"{path} is empty; a log has a row for each decision")
            if not here:
                self._schema.note(f"{path} is empty, and was left out")
            done += self._sizes[i]
            self.done_bytes = done
        if not any_rows:
            raise ConfigError(f"{self.paths[0].parent} holds only empty files; a log has a row for each decision")

    def _check_ids(self, found: "RawRows", states: set[str], actions: set[str]) -> None:
        """Reject an ambiguous id: a feature of both states and actions."""
        from lockstep.data.logs.maps import Maps

        state, action = found.maps["state"], found.actions["action"]
        states.update(state.ids)
        if not isinstance(action, Maps):
            return
        actions.update(action.ids)
        if both := next((name for name in states if name in actions), None):
            known = [~np.isnan(m.values[:, m.ids.index(both)]) for m in (state, action) if both in m.ids]
            row = max((int(one.argmax()) for one in known if one.any()), default=0)
            found.where.refuse(
                row,
                f"feature {both} is one of state_features and one of action; give features of actions other ids, such "
                f"as action_{both}",
            )


def _other_kind(path: Path, asked: str) -> str:
    """The error message for a kind of actions that a log does not have."""
    from lockstep.data.logs.actions import CONTINUOUS

    if asked == "discrete":
        return f"kind=discrete: the actions of {path} are maps or lists of numbers; leave it out"
    way_out = f"leave it out, or log numbers: {CONTINUOUS}" if asked == "continuous" else "leave it out"
    return f"kind={asked}: the actions of {path} are names; {way_out}"
