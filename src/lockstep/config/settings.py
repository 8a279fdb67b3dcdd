"""Convert trees of frozen dataclasses from and to plain values, YAML and `name=value`; errors name the setting."""

import datetime
import difflib
import functools
import json
import math
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from operator import attrgetter
from pathlib import PurePath
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import yaml

from lockstep.errors import ConfigError

Tree = TypeVar("Tree")
_TEXT = "tag:yaml.org,2002:str"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_OCTAL = re.compile(r"[-+]?0[0-9_]+")
MUST_BE = "must_be"
"""Key in the `metadata` of a field, for what errors say of its values instead of the type."""
_USER_KEYED_SETTINGS = ("kwargs", "reward_boost", "feature_overrides")
"""Settings whose keys are names of the user's own."""
_FEW = 12
"""Settings that an error lists."""


@functools.cache
def _hints(node: type) -> dict[str, Any]:
    """The types of a dataclass' fields by name."""
    hints = get_type_hints(node)
    return {item.name: hints[item.name] for item in fields(node)}


def parse(text: str, where: str) -> Any:
    """Read YAML 1.1, with `1e-3` as a number, `1:5` and `010` as text; `where` names the source in errors.

    Raises:
        ConfigError: the text is not YAML, has a tag of Python, or a mapping has a name twice.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except _RepeatedNameError as error:
        raise ConfigError(f"{where}, line {error.line}: {error.name} is there twice; leave one out") from None
    except yaml.YAMLError as error:
        mark: Any = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}," if mark and "\n" in text else ""
        if tag := re.search(r"'tag:yaml\.org,2002:(python/[^']+)'", str(error)):
            said = f"{where}{line} has the Python tag !!{tag[1]}; write plain values, and a list for a tuple"
            raise ConfigError(said) from None
        raise ConfigError(f"{where}{line} is not YAML: {getattr(error, 'problem', None) or error}") from None


def to_yaml(data: object, *, one_line: bool = False) -> str:
    """Plain values as YAML that `parse` reads back equal; on `one_line`, without a line break at the end."""
    width = math.inf if one_line else None
    try:
        text = yaml.dump(
            data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=one_line, width=width
        )
    except yaml.YAMLError as error:
        found = _not_plain(data) or ": ".join(map(str, error.args))
        raise ConfigError(
            "settings must be plain values: numbers, text (a date in quotes), true, false, null, lists and mappings "
            f"({found})"
        ) from None
    return text.removesuffix("\n").removesuffix("\n...") if one_line else text


def _not_plain(value: Any, name: str = "") -> str:
    """The first value of a tree that is not plain, with its dotted name; empty if all are."""
    if isinstance(value, Mapping):
        items = [(f"{name}.{key}" if name else str(key), item) for key, item in cast(Mapping[Any, Any], value).items()]
    elif type(value) in (list, tuple):
        items = [(f"{name}[{i}]", item) for i, item in enumerate(cast(list[Any], value))]
    else:
        plain_value = value is None or type(value) in (bool, int, float, str)
        return "" if plain_value or not name else f"{name}={value!r}, of type {type(value).__name__}"
    return next((found for key, item in items if (found := _not_plain(item, key))), "")


def plain(value: Any) -> Any:
    """Convert a tree to mappings, lists and scalars, those of NumPy too, and paths to text."""
    if is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in cast(list[Any], value)]
    if isinstance(value, (np.generic, np.ndarray)):
        return cast(Any, value).tolist()
    if isinstance(value, PurePath):
        return str(value)
    return value


def value_of(data: object, key: str) -> Any:
    """The entry of a mapping; `None` without the key, or if `data` is no mapping."""
    return cast(Mapping[object, Any], data).get(key) if isinstance(data, Mapping) else None


def flatten(data: object, node: object, prefix: str = "", root: object = None) -> dict[str, Any]:
    """The leaves of nested mappings by dotted name; raises `ConfigError` for names that are no field of `node`.

    `prefix` is the dotted name of `node` in the tree `root`, with a final dot.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"{prefix.rstrip('.') or 'a run'}={_shown(data)} must be a mapping of settings")
    hints, leaves = _hints(type(node)), dict[str, Any]()
    for key, value in cast(Mapping[object, Any], data).items():
        if key not in hints:
            raise _unknown_in_mapping(f"{prefix}{key}", value, hints_of(root or node))
        if is_dataclass(inner := getattr(node, cast(str, key))):
            leaves |= flatten(value, inner, f"{prefix}{key}.", root or node)
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves


@functools.cache
def _own_words(node: type) -> dict[str, str]:
    """What settings of a dataclass must be, by name, where its type does not say it all (`metadata` of the field)."""
    return {item.name: item.metadata[MUST_BE] for item in fields(cast(Any, node)) if MUST_BE in item.metadata}


def updated(node: Tree, leaves: Mapping[str, Any], prefix: str = "") -> Tree:
    """A copy with new leaves, by dotted name; each node is created, and thus validated, once with all its changes."""
    changed: dict[str, Any] = {}
    tree: Any = node
    own_words = _own_words(type(node))
    for name, hint in _hints(type(node)).items():
        current, path = getattr(tree, name), prefix + name
        if is_dataclass(current):
            changed[name] = updated(current, leaves, path + ".")
        elif path in leaves:
            changed[name] = converted(path.removeprefix("algorithm."), leaves[path], hint, own_words.get(name, ""))
    return replace(tree, **changed)


def convert_fields(node: object, prefix: str = "") -> None:
    """Convert the leaves of a frozen node to the types of its settings, in place: 3e6 to 3000000, lists to tuples.

    Args:
        node: just made, from Python, where nothing checks the types; its inner nodes are left as they are.
        prefix: the dotted name of `node` in errors, with a final dot.

    Raises:
        ConfigError: a value is of another type.
    """
    own_words = _own_words(type(node))
    for name, hint in _hints(type(node)).items():
        value = getattr(node, name)
        if not is_dataclass(value):
            object.__setattr__(node, name, converted(prefix + name, value, hint, own_words.get(name, "")))


def override(tree: Tree, changes: Mapping[str, Any]) -> Tree:
    """As `updated`, but names may be abbreviated and strings are read as YAML; see `lockstep.run.override`.

    Raises:
        ConfigError: a name or a value is wrong, or two names give one setting two values.
    """
    hints, leaves, named = hints_of(tree), dict[str, Any](), dict[str, str]()
    within: dict[str, tuple[str, Any]] = {}  # names and values of keys of mappings
    for name, given in changes.items():
        path, keys = _find(name, hints)
        value = parse(given, f"{name}={given}") if isinstance(given, str) else given
        if hints[path] in (str, str | None) and not (value is None or isinstance(value, str)):
            value = given  # a text setting keeps text that YAML would read as a number or a date
        if keys:
            key = ".".join((path, *keys))
            first, before = within.setdefault(key, (name, value))
            if before != value:
                raise ConfigError(f"{first} and {name} give {key} two values; leave one of them out")
            path_value: Any = leaves.get(path, attrgetter(path)(tree))
            value = _nested(path_value, keys, value)
        inner = attrgetter(path)(tree)
        changed = flatten(plain(value), inner, path + ".", tree) if is_dataclass(inner) else {path: value}
        for leaf in changed:
            if not keys and leaf in leaves and leaves[leaf] != changed[leaf]:
                raise ConfigError(f"{named[leaf]} and {name} give {leaf} two values; leave one of them out")
        leaves |= changed
        named |= dict.fromkeys(changed, name)
    return updated(tree, leaves)


def check_known(tree: Any, names: Iterable[str]) -> None:
    """Raise `ConfigError` for names that `override` does not know, or that could be several settings."""
    hints = hints_of(tree)
    for name in names:
        _find(name, hints)


class _RepeatedNameError(Exception):
    """A mapping has a name twice; PyYAML would take the last value and drop the others."""

    def __init__(self, name: str, line: int) -> None:
        super().__init__(name)
        self.name, self.line = name, line


class _Loader(yaml.SafeLoader):
    """A safe loader that reads `1e-3` as a number, `1:5` and `010` as text, and refuses repeated names."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = cast(yaml.MappingNode, cast(Any, super()).compose_mapping_node(anchor))
        names = set[str]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in names:
                    raise _RepeatedNameError(key.value, key.start_mark.line + 1)
                names.add(key.value)
        return node

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        tag = cast(str, cast(Any, super()).resolve(kind, value, implicit))
        # YAML 1.1 counts in sixties and in eights: it reads the seeds 1:5 as 65, and 010 as 8.
        surprising = tag in _NUMBERS and (":" in value or _OCTAL.fullmatch(value))
        return _TEXT if kind is yaml.ScalarNode and surprising else tag


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader` would read as a number, and never abbreviates repeated values.

    Dates, bytes and sets are refused: the JSON of a checkpoint cannot hold them.
    """

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Text of several lines, such as a script, is written as a block."""
    return dumper.represent_scalar(_TEXT, text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)
for _class in (datetime.date, datetime.datetime, bytes, set):
    _Dumper.add_representer(_class, cast(Any, yaml.SafeDumper).represent_undefined)
for _class in (_Loader, _Dumper):
    cast(Any, _class).add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$"),
        list("-+.0123456789"),
    )


def hints_of(node: Any, prefix: str = "") -> dict[str, Any]:
    """The type of every field of the tree, inner nodes included, by dotted name."""
    found: dict[str, Any] = {}
    for name, hint in _hints(node.__class__).items():
        found[prefix + name] = hint
        if is_dataclass(inner := getattr(node, name)):
            found |= hints_of(inner, f"{prefix}{name}.")
    return found


def _find(name: str, hints: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Resolve an abbreviated name: the dotted name, and the keys below it if the setting is a mapping."""
    head, keys = name, list[str]()
    while head:
        found = [head] if head in hints else [path for path in hints if path.rpartition(".")[2] == head]
        if len(found) > 1:
            raise ConfigError(f"{name} could be {' or '.join(found)}; write it in full")
        if found and not keys:
            return found[0], keys
        if found and get_origin(hint := hints[found[0]]) is dict:
            # Only mappings of anything hold others; elsewhere a dot is part of the key, as of the feature user.age.
            return found[0], keys if get_args(hint)[1] is Any else [".".join(keys)]
        head, _, key = head.rpartition(".")
        keys.insert(0, key)
    raise _unknown(name, hints)


def _unknown_in_mapping(name: str, value: Any, hints: Mapping[str, Any]) -> ConfigError:
    """The error of a name that is no field there; says where in the file a setting of this name belongs."""
    last = name.rpartition(".")[2]
    places = [path for path in hints if path.rpartition(".")[2] == last and "." in path]
    if len(places) != 1:
        return _unknown(name, hints)
    below = places[0].rpartition(".")[0]
    return ConfigError(f"unknown setting {name}; write it below {below}, as `{below}: {{{last}: {_shown(value)}}}`")


def _unknown(name: str, hints: Mapping[str, Any]) -> ConfigError:
    by_name = {path.rpartition(".")[2]: path for path in hints}
    last = name.rpartition(".")[2]
    others = [item for item in (*by_name, *hints) if not name.startswith(f"{item}.")]  # not the section of the name
    near = [last] if last in by_name else difflib.get_close_matches(name, others, n=3)
    near = near or difflib.get_close_matches(last, by_name, n=3)
    meant = list(dict.fromkeys(by_name.get(item, item) for item in near))
    if meant:
        hint = f"did you mean {' or '.join(meant)}?"
    elif len(hints) <= _FEW:
        hint = f"there are {', '.join(hints)}"
    else:
        logged = "eval_data" in hints  # a run that learns from a log has no recipe and steps no environments
        hint = f"{'docs/logged-data.md' if logged else '`lockstep recipe NAME`'} shows every setting"
        if last and "env.kwargs" in hints and not logged:
            hint += f", and an argument of the environment is env.kwargs.{last}"
    return ConfigError(f"unknown setting {name}; {hint}")


def _nested(mapping: Mapping[str, Any], keys: list[str], value: Any) -> dict[str, Any]:
    inner: Any = mapping.get(keys[0], {})
    if len(keys) > 1:
        value = _nested(cast(Mapping[str, Any], inner) if isinstance(inner, Mapping) else {}, keys[1:], value)
    return {**mapping, keys[0]: value}


def converted(name: str, value: Any, hint: Any, must_be: str = "") -> Any:
    """Convert a value to the type of a setting; raises `ConfigError`, which names the setting.

    `must_be` replaces the description of the type in the error.
    """
    if get_origin(hint) is not dict:  # values within a mapping are the user's own
        value = plain(value)
    if isinstance(value, float) and value.is_integer() and hint in (int, int | None):
        value = int(value)  # 3e6 steps
    try:
        converted = msgspec.convert(value, hint)
    except msgspec.ValidationError:
        words = must_be or _expected(hint) + _as_list(value, hint)
        raise ConfigError(f"{name}={_shown(value)} must be {words}") from None
    if isinstance(converted, float) and math.isnan(converted):
        raise ConfigError(f"{name}={_shown(value)} must be {_expected(hint)}")
    return converted


def _as_list(value: Any, hint: Any) -> str:
    """`: write [64, 64]` for 64, 64 without brackets, where the type is a list of such values; else empty."""
    if isinstance(value, str | int):
        with suppress(ConfigError, msgspec.ValidationError):
            msgspec.convert(parse(f"[{value}]", ""), hint)
            return f": write [{value}]"
    return ""


def as_text(value: object) -> str:
    """A value as it is written after `NAME=` of `--set`."""
    if value is None or isinstance(value, (bool, list, tuple, dict)):
        with suppress(ValueError):  # of a list that contains itself, by an anchor of YAML
            return json.dumps(value, default=str)
    return f"{value}"


def _shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def _expected(hint: Any) -> str:
    """A type as errors describe it."""
    simple = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        lists = [part for part in parts if get_origin(part) in (tuple, list)]
        others = [part for part in parts if part not in lists]  # first: after a list they would read as its items
        return (", or " if lists else " or ").join(_expected(part) for part in [*others, *lists])
    if origin is Literal:
        return ("one of " if len(parts) > 1 else "") + ", ".join(str(part) for part in parts)
    if origin in (tuple, list):
        return f"a list, each item {_expected(parts[0])}"
    if origin is dict:
        return "a mapping with text as keys" if parts[0] is str else "a mapping"
    return simple.get(hint, str(hint))


def setting_name(typed: str) -> str:
    """The name of a setting without hyphens; the user's own names, below some settings, are kept."""
    parts = typed.split(".")
    for i, part in enumerate(parts):
        parts[i] = part.replace("-", "_")
        if parts[i] in _USER_KEYED_SETTINGS:
            break
    return ".".join(parts)


def short_names(names: Sequence[str]) -> list[str]:
    """The last part of each dotted name; the whole name where another one ends with the same."""
    last = [name.rpartition(".")[2] for name in names]
    return [word if last.count(word) == 1 else name for word, name in zip(last, names, strict=True)]


def leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a tree of mappings by dotted name."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found |= leaves(value, f"{prefix}{key}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            found[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownArgumentType]
    return found
