"""Names of the columns of a log: those of the schema, and the user's."""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from lockstep.config import settings
from lockstep.data.logs.actions import ActionNames
from lockstep.data.logs.column_guess import ColumnNames, likely_column, suggest_columns
from lockstep.data.logs.column_names import ACTIONS, MAPS, REQUIRED, SCHEMA
from lockstep.errors import ConfigError

ALIASES = {"propensity": "action_probability"}
"""Columns with a second name."""
IGNORED = ("ds", "_file", "_row", "has_next_state")
"""Columns that are ignored without a note."""
WHOLE = "a whole number, of steps or of seconds"
"""What a `sequence_number` must be."""
_TIME_AS_FEATURE = {"sequence_number", "state_features"}
"""The roles that one column may have at once."""
_SPREAD = (*MAPS, *ACTIONS)
_NEEDED = (*REQUIRED, "state_features", "action", "reward")
"""The columns that every log has."""
_MOST_NAMES = 20
"""Columns of a log that a message names."""


@dataclass(slots=True)
class LogSchema:
    """The schema of a log with the user's column names: finds its columns in files, and collects notes for the user.

    Attributes:
        overrides: the user's column names, by schema name.
        left_out: schema names whose columns are not read, though the log may have them.
        names: of discrete actions.
        notes: lines for the user, each once.
    """

    overrides: dict[str, ColumnNames] = field(default_factory=dict[str, ColumnNames])
    left_out: frozenset[str] = frozenset()
    names: ActionNames = field(default_factory=ActionNames)
    notes: list[str] = field(default_factory=list[str])
    _noted: set[str] = field(default_factory=set[str])

    @classmethod
    def of(
        cls,
        columns: Mapping[str, Any] | None,
        actions: Sequence[str] | None,
        *,
        numeric_lists: bool | None = None,
        indexed: bool = True,
        like: bool = False,
    ) -> "LogSchema":
        """From the user's settings, the others as in `ActionNames`. Raises `ConfigError` if they are invalid."""
        if actions is not None and len(set(actions)) != len(actions):
            raise ConfigError(f"actions={','.join(actions)} names one twice; each needs a name of its own")
        named = {_schema_name(name): value for name, value in (columns or {}).items()}
        left_out = frozenset(name for name, value in named.items() if value is None and name not in _NEEDED)
        overrides = {name: _own(name, value) for name, value in named.items() if name not in left_out}
        if actions is not None:
            numeric_lists = False
        names = None if actions is None else tuple(actions)
        return cls(overrides, left_out, ActionNames(names, indexed=indexed, numeric_lists=numeric_lists, like=like))

    def column_of(self, name: str, available: Iterable[str]) -> str | None:
        """The name of a schema column in a log; None if it is missing, left out, or a map with a column for each id."""
        configured = self.overrides.get(name, name)
        if not isinstance(configured, str) or name in self.left_out:
            return None
        other = ALIASES.get(name) if name not in self.overrides else None
        available = set(available)
        if other in available and configured in available:
            raise ConfigError(f"the log has both {configured} and {other}, which mean the same; say which in --columns")
        return configured if configured in available else other if other in available else None

    def spread_columns(self, name: str, available: Iterable[str] = ()) -> dict[str, str]:
        """The columns of a map with a column for each id, by id: the user's, or those named `state:ID` and so on."""
        configured = self.overrides.get(name)
        if isinstance(configured, dict):
            return configured
        if configured or name in self.left_out:
            return {}
        return {column.removeprefix(_prefix(name)): column for column in available if column.startswith(_prefix(name))}

    def used_columns(self, available: Sequence[str]) -> set[str]:
        """Columns that belong to the schema."""
        found = {column for name in SCHEMA if (column := self.column_of(name, available)) is not None}
        return found | {column for name in _SPREAD for column in self.spread_columns(name, available).values()}

    def note_others(self, available: Sequence[str], path: Path) -> None:
        """Add a note about unused columns, once for each."""
        not_read = {*IGNORED, *self.left_out, *(ALIASES[name] for name in self.left_out if name in ALIASES)}
        known = self.used_columns(available) | self._noted | not_read
        left_out = tuple(_prefix(name) for name in self.left_out if name in _SPREAD)
        new = [column for column in available if column not in known and not column.startswith(left_out)]
        if new:
            self._noted.update(new)
            likely = {
                name: column
                for name in SCHEMA
                if name not in (*self.overrides, *self.left_out)
                and self.column_of(name, available) is None
                and not self.spread_columns(name, available)
                and (column := likely_column(name, new)) is not None
            }
            hint = "".join(
                f"; if {column} means {name}, --columns says so: {name}: {column}" for name, column in likely.items()
            )
            self.notes.append(
                f"{path}: columns left out, since no column of a log has such a name: {_listed(new)}{hint}"
            )

    def note(self, line: str) -> None:
        """Add a note for the user, once."""
        if line not in self.notes:
            self.notes.append(line)

    def check(
        self, available: Sequence[str], path: Path, kinds: Callable[[], Mapping[str, str]], *, by_prefix: bool = True
    ) -> None:
        """Raise `ConfigError` if a required column, or one that the user named, is missing.

        `kinds` returns the known kinds of columns, `number` or `map`, and is called only if one is missing.
        `by_prefix`: maps may have a column for each id, such as `state:ID`.
        """
        for name, configured in self.overrides.items():
            for column in [configured] if isinstance(configured, str) else configured.values():
                if column not in available:
                    raise ConfigError(
                        f"{path} has no column {column}, which --columns (or the data of --like) names for {name}; "
                        f"it has {_listed(available)}{_spaced([column], available)}"
                    )
        missing = [
            name
            for name in _NEEDED
            if self.column_of(name, available) is None
            and not (name in _SPREAD and self.spread_columns(name, available if by_prefix else ()))
        ]
        if missing:
            taken = self.used_columns(available) if by_prefix else {self.column_of(name, available) for name in SCHEMA}
            unused = [column for column in available if column not in taken and column not in IGNORED]
            some = "columns" if len(missing) > 1 else "column"
            raise ConfigError(
                f"{path} has no {some} {', '.join(missing)}; it has {_listed(available)}"
                f"{_spaced(missing, available)}. If they are called "
                "otherwise, save these lines as columns.yaml, correct them, and add --columns columns.yaml:\n\n"
                f"{suggest_columns(self.overrides, missing, unused, kinds())}\n"
            )

    def check_roles(self) -> None:
        """Raise `ConfigError` for a column with two roles: a reward among the features would be the answer."""
        named = [[own] if isinstance(own, str) else [*own.values()] for own in self.overrides.values()]
        available, roles = [column for columns in named for column in columns], dict[str, str]()
        for name in SCHEMA:
            column = self.column_of(name, available)
            spread = self.spread_columns(name, available) if name in _SPREAD else {}
            for used in (*spread.values(), *([] if column is None else [column])):
                before = roles.setdefault(used, name)
                if before != name and {before, name} != _TIME_AS_FEATURE:
                    raise ConfigError(
                        f"--columns: column {used} is read as {before} and as {name}; leave it out of one of them "
                        "(only the sequence_number may be among the state_features, too)"
                    )


def read_columns(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON file that maps schema names to column names.

    The columns of a map may be a list, whose names are then the ids, or a map of ids to columns. A column that is null
    is not read.
    """
    try:
        found = settings.parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--columns {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"--columns {path} does not hold a mapping; write lines such as mdp_id: episode")
    return cast("dict[str, Any]", found)


def _schema_name(name: Any) -> str:
    """The name of a column in the schema, of which it may be the second. Raises `ConfigError` if there is none."""
    if name in ALIASES.values():
        return next(key for key, other in ALIASES.items() if other == name)
    if name not in SCHEMA:
        near = difflib.get_close_matches(str(name), SCHEMA, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(SCHEMA)}"
        raise ConfigError(f"--columns: no column of a log is called {name}{hint}")
    return name


def _prefix(name: str) -> str:
    """What the columns of single ids of a map begin with."""
    return MAPS.get(name, name) + ":"


def _own(name: str, value: Any) -> ColumnNames:
    if isinstance(value, str):
        return value
    if name in _SPREAD and isinstance(value, list) and value:
        named = [str(column) for column in cast("list[Any]", value)]
        if len(set(named)) < len(named):
            twice = next(column for column in named if named.count(column) > 1)
            raise ConfigError(f"--columns: {name} has {twice} twice; leave one out")
        return {column: column for column in named}
    if name in _SPREAD and isinstance(value, dict) and value:
        return {str(key): str(column) for key, column in cast("dict[Any, Any]", value).items()}
    kinds = "the name of a column" + (", a list of columns, or a map of ids to columns" if name in _SPREAD else "")
    optional = "" if name in _NEEDED else ", or null to leave it out"
    shown = settings.as_text(cast("object", value))
    raise ConfigError(f"--columns: {name} is {shown}; it must be {kinds}{optional}")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    shown = (name if name == name.strip() else repr(name) for name in names[:_MOST_NAMES])
    return ", ".join(name or "one without a name" for name in shown) + more


def _spaced(wanted: Sequence[str], available: Sequence[str]) -> str:
    """A hint at names that are there with spaces around them, as some programs write them after each comma."""
    found = [name for name in available if name != name.strip() and name.strip() in wanted]
    return "; save it without the spaces around names" if found else ""
