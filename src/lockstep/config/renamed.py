"""Error messages for settings and algorithms by the names of other libraries: our name, and the line to type."""

import math
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, cast

from lockstep.algorithms.all import ALGORITHMS, OFFLINE_ALGORITHMS
from lockstep.config.absent import ABSENT
from lockstep.config.settings import as_text, parse
from lockstep.config.synonyms import SYNONYMS, Known, Synonym
from lockstep.config.variants import VARIANTS, Variant
from lockstep.errors import ConfigError

How = Literal["set", "flag", "yaml", "python"]
"""Where a name was written."""
_OUR_POLICIES = ("greedy", "softmax", "sampled")
"""Values of our `policy`, a setting of algorithms that learn from logs; elsewhere it is a kind of network."""
_VALUE = "VALUE"
"""Placeholder for a value that cannot be computed from theirs."""
_BY_NAME: dict[str, list[Synonym]] = {}
for _synonym in SYNONYMS:
    for _name in _synonym.names.split():
        _BY_NAME.setdefault(_name, []).append(_synonym)
_OF_ALGORITHMS = {item.name for cls in (*ALGORITHMS.values(), *OFFLINE_ALGORITHMS.values()) for item in fields(cls)}


def check_names(run: object, given: Mapping[str, Any], how: How) -> None:
    """Raise `ConfigError` for names of other libraries among the `given` values, with the line to write instead."""
    known = known_settings(run)
    for name, value in given.items():
        last = name.rpartition(".")[2]
        if last in known and not is_dataclass(known[last]):
            known[last] = _parsed(value)
    for name, value in given.items():
        if any(isinstance(known.get(part), Mapping) for part in name.split(".")[:-1]):
            continue  # env.kwargs.lr is an argument of the environment
        if is_dataclass(section := known.get(name)):  # algorithm={lr: 1}
            check_names(run, {f"{name}.{key}": one for key, one in _leaves(section, _as_mapping(value))}, how)
        answer = renaming_error(name, value, known, how)
        if answer is not None:
            raise ConfigError(answer)


def check_tree_names(run: object, data: object) -> None:
    """`check_names` for nested mappings, as in YAML."""
    check_names(run, dict(_leaves(run, data)), "yaml")


def known_settings(run: object) -> dict[str, Any]:
    """All settings and sections of a run by the last part of their dotted names."""
    return dict(_settings(run))


def renaming_error(
    name: str, value: object, known: Known, how: How, flags: Collection[str] | None = None
) -> str | None:
    """The error message for a name of another library; None for a setting of ours and for an unknown name.

    `known` are the settings of the run; `flags` those of the command, default: all of `lockstep train`.
    """
    word = name.lstrip("-").rpartition(".")[2].lower().replace("-", "_")
    text = as_text(value)
    problem = f"unknown argument {name} {text}".rstrip() if how == "flag" else f"unknown setting {name}={text}"
    is_section_value = is_dataclass(known.get(word)) and isinstance(value, str) and re.fullmatch(r"[\w./:-]+", value)
    if word in known and not is_section_value:  # env: CartPole-v1
        line = _line(word, text or ("true" if isinstance(known[word], bool) else _VALUE), known, how)
        return f"{problem}; {word} is a setting: type {line}" if how == "flag" else None
    if word in ABSENT and not (word == "policy" and text in _OUR_POLICIES):
        return f"{problem}; here {ABSENT[word]}: leave it out"
    synonyms = _BY_NAME.get(word, [])
    if flags is not None:
        synonyms = [item for item in synonyms if not item.setting.startswith("--") or item.setting in flags]
    found = next((item for item in synonyms if _is_setting(item, known)), None)
    if found is None:
        if not synonyms or word in _OF_ALGORITHMS:
            return None
        return (
            f"{problem}; here it is {synonyms[0].setting}, which algo={known.get('algo')} does not have: leave it out"
        )
    note = f" ({found.note})" if found.note else ""
    verb = "write" if how in ("yaml", "python") and not found.setting.startswith("--") else "type"
    line = _line(found.setting, _converted_value(found, text, known), known, how)
    return f"{problem}; here it is {found.setting}{note}: {verb} {line}"


def _is_setting(synonym: Synonym, known: Known) -> bool:
    """Whether the algorithm of a run has the setting, with this meaning; flags are settings of every run."""
    means_this = not synonym.beside or synonym.beside in known
    return synonym.setting.startswith("--") or (synonym.setting in known and means_this)


def check_algorithm_name(algo: str, algorithms: Mapping[str, type]) -> None:
    """Raise `ConfigError` if `algo` is another library's name of one of these algorithms, by our names."""
    word = algo.lower().replace("-", "_").replace("+", "_")
    known = (item for item in VARIANTS if word in item.names.split() and _is_variant_of(item, algorithms))
    found = next(known, Variant(word, word) if word in algorithms else None)
    if found is not None:
        given = found.settings.split()
        settings = f" with the setting{'s' * (len(given) > 1)} {', '.join(given)}" if given else ""
        raise ConfigError(f"unknown algo={algo}; here it is algo={found.algo}{settings}")


def _is_variant_of(variant: Variant, algorithms: Mapping[str, type]) -> bool:
    """Whether one of these algorithms has the settings; `dqn` has some in environments alone, or for logs alone."""
    if variant.algo not in algorithms:
        return False
    own = {item.name for item in fields(algorithms[variant.algo])}
    names = (setting.partition("=")[0] for setting in variant.settings.split())
    return all(name in own or name.startswith("network.") for name in names)


def is_switch(word: str, known: Known) -> bool:
    """Whether a flag of this name is a switch, without a value."""
    name = word.lstrip("-").replace("-", "_")
    return isinstance(known.get(name), bool) or any(synonym.switch for synonym in _BY_NAME.get(name, ()))


def _converted_value(synonym: Synonym, text: str, known: Known) -> str:
    """Their value converted to ours, or a placeholder."""
    text = text or ("true" if synonym.switch else "")
    try:
        return (synonym.value(text, known) if synonym.value else text) or _VALUE
    except (ValueError, KeyError, TypeError, ZeroDivisionError):
        return _VALUE


def _line(setting: str, value: str, known: Known, how: How) -> str:
    if setting.startswith("--"):
        return setting if setting == "--video" else f"{setting} {shlex.quote(value)}"
    if setting in ("task", "algo") and how in ("set", "flag"):
        return f"--{setting} {shlex.quote(value)}"
    if how == "yaml":
        parts = (name for name, node in known.items() if is_dataclass(node) and setting in dict(_settings(node)))
        part = next(parts, None)
        return f"`{part}: {{{setting}: {value}}}`" if part else f"`{setting}: {value}`"
    return f"{setting}={value}" if how == "python" else f"--set {shlex.quote(f'{setting}={value}')}"


def _as_mapping(value: object) -> object:
    """Text as the mapping that YAML reads in it, if there is one, else the value unchanged."""
    return parse(value, "") if isinstance(value, str) and value.lstrip().startswith("{") else value


def _parsed(value: object) -> object:
    """Text as a number if it is one, else the value unchanged."""
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return value
    return number if math.isfinite(number) else value


def _settings(node: object) -> Iterator[tuple[str, Any]]:
    for item in fields(cast(Any, node)):
        value = getattr(node, item.name)
        yield item.name, value
        if is_dataclass(value):
            yield from _settings(value)


def _leaves(node: object, data: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested mappings by dotted name, as deep as `node` has sections."""
    for key, value in cast(Mapping[object, Any], data).items() if isinstance(data, Mapping) else ():
        inner = getattr(node, key, None) if isinstance(key, str) else None
        if is_dataclass(inner) and isinstance(value, Mapping):
            yield from _leaves(inner, cast(Mapping[object, Any], value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
