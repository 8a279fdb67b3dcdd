"""What to say about a word that another library has for a setting: our name, and the line to type."""

import json
import math
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, cast

from lockstep.algorithms.dqn import DQNConfig
from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.config.synonyms import WORDS, Known, Word
from lockstep.errors import ConfigError

How = Literal["set", "flag", "yaml", "python"]
"""Where a word was written."""
_VALUE = "VALUE"
"""Stands for a value that cannot be told from theirs."""
_MEANINGS: dict[str, list[Word]] = {}
for _word in WORDS:
    for _name in _word.names.split():
        _MEANINGS.setdefault(_name, []).append(_word)
_OF_ALGORITHMS = {item.name for cls in (PPOConfig, DQNConfig, OfflineDQNConfig, CloningConfig) for item in fields(cls)}


def check_words(run: object, given: Mapping[str, Any], how: How) -> None:
    """Refuse words of other libraries among the names of settings, and say what to write.

    Args:
        run: the settings without what is given.
        given: new values, by name or dotted name.
        how: where they were written.
    """
    known = known_settings(run)
    for name, value in given.items():
        last = name.rpartition(".")[2]
        if last in known and not is_dataclass(known[last]):
            known[last] = _parsed(value)
    for name, value in given.items():
        if any(isinstance(known.get(part), Mapping) for part in name.split(".")[:-1]):
            continue  # env.kwargs.lr is an argument of the environment
        answer = answer_to(name, value, known, how)
        if answer is not None:
            raise ConfigError(answer)


def check_tree(run: object, data: object) -> None:
    """`check_words` of the keys of nested mappings, as YAML has them."""
    check_words(run, dict(_leaves(run, data)), "yaml")


def known_settings(run: object) -> dict[str, Any]:
    """All settings of a run, and its parts, by their last names."""
    return dict(_settings(run))


def answer_to(name: str, value: object, known: Known, how: How, flags: Collection[str] | None = None) -> str | None:
    """What to say about a word with its value; None for a setting, and for a word that nobody has.

    `flags`: those that can be typed here, if not all.
    """
    word = name.lstrip("-").rpartition(".")[2].lower().replace("-", "_")
    text = _text(value)
    said = f"unknown argument {name} {text}".rstrip() if how == "flag" else f"unknown setting {name}={text}"
    a_name = is_dataclass(known.get(word)) and isinstance(value, str) and re.fullmatch(r"[\w./:-]+", value)
    if word in known and not a_name:  # env: CartPole-v1
        line = _line(word, text or _without(known[word]), known, how)
        return f"{said}; {word} is a setting: type {line}" if how == "flag" else None
    meanings = _MEANINGS.get(word, [])
    if flags is not None:
        meanings = [item for item in meanings if not item.here.startswith("--") or item.here in flags]
    found = next((item for item in meanings if item.here in known or item.here.startswith("--")), None)
    if found is None:
        if not meanings or word in _OF_ALGORITHMS:
            return None
        return f"{said}; here it is {meanings[0].here}, which algo={known.get('algo')} does not have: leave it out"
    note = f" ({found.note})" if found.note else ""
    verb = "write" if how in ("yaml", "python") and not found.here.startswith("--") else "type"
    line = _line(found.here, _value_here(found, text, known), known, how)
    return f"{said}; here it is {found.here}{note}: {verb} {line}"


def stands_alone(word: str, known: Known) -> bool:
    """Whether a flag of this name is a switch, which needs no value."""
    name = word.lstrip("-").replace("-", "_")
    return isinstance(known.get(name), bool) or any(meaning.switch for meaning in _MEANINGS.get(name, ()))


def _value_here(word: Word, text: str, known: Known) -> str:
    """Their value as ours, or a word that stands for it."""
    text = text or ("true" if word.switch else "")
    try:
        return (word.value(text, known) if word.value else text) or _VALUE
    except (ValueError, KeyError, TypeError, ZeroDivisionError):
        return _VALUE


def _without(now: object) -> str:
    """The value of a flag that was typed without one."""
    return "true" if isinstance(now, bool) else _VALUE


def _line(here: str, value: str, known: Known, how: How) -> str:
    """What to type or to write, as it can be pasted."""
    if here.startswith("--"):
        return here if here == "--video" else f"{here} {shlex.quote(value)}"
    if here == "task" and how in ("set", "flag"):
        return f"--task {shlex.quote(value)}"
    if how == "yaml":
        parts = (name for name, node in known.items() if is_dataclass(node) and here in dict(_settings(node)))
        part = next(parts, None)
        return f"`{part}: {{{here}: {value}}}`" if part else f"`{here}: {value}`"
    return f"{here}={value}" if how == "python" else f"--set {shlex.quote(f'{here}={value}')}"


def _text(value: object) -> str:
    if value is None or isinstance(value, (bool, list, tuple, dict)):
        return json.dumps(value, default=str)
    return str(value)


def _parsed(value: object) -> object:
    """A number where text holds one."""
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
    """What nested mappings give, by dotted name, as far as `node` has such parts."""
    for key, value in cast(Mapping[object, Any], data).items() if isinstance(data, Mapping) else ():
        inner = getattr(node, key, None) if isinstance(key, str) else None
        if is_dataclass(inner) and isinstance(value, Mapping):
            yield from _leaves(inner, cast(Mapping[object, Any], value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
