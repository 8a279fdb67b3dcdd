"""Files of features: our JSON format, and the one of ReAgent, read only.

Every error names the file, the feature and the key.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from lockstep.data.features import Feature, Features, needed_keys
from lockstep.errors import ConfigError, RunError
from lockstep.system.files import read_text, write_atomically

_FORMAT = 1
_KEYS = tuple(item.name for item in fields(Feature))
_LISTS = ("possible_values", "quantiles")
_CLASSIC = tuple(name for name in _KEYS if name not in ("type", "note"))


def features_to_dict(features: Features) -> dict[str, Any]:
    """As plain values for JSON, without empty fields."""
    return {"format": _FORMAT, "features": {key: _plain(feature) for key, feature in features.items()}}


def features_from_dict(data: object, where: str = "features") -> Features:
    """Features from plain values, or from ReAgent's `{id: JSON text}`; `where` names the source in errors."""
    tree = _mapping(data, where)
    texts = {key: text for key, text in tree.items() if isinstance(text, str)}
    if tree and len(texts) == len(tree):
        return Features({key: _classic(text, f"{where}: feature {key}") for key, text in texts.items()})
    if unknown := sorted(tree.keys() - {"format", "features"}):
        raise ConfigError(f"{where}: {unknown[0]} is unknown; it holds `format` and `features`")
    if (number := tree.get("format")) != _FORMAT:
        newer = isinstance(number, int) and number > _FORMAT
        raise ConfigError(f"{where}: format={number} must be {_FORMAT}{'; upgrade lockstep-rl' if newer else ''}")
    found = _mapping(tree.get("features"), f"{where}: features")
    return Features({key: _feature(value, f"{where}: feature {key}") for key, value in found.items()})


def load_features(path: Path) -> Features:
    """Read a file of features. Raises `ConfigError` if it is missing or malformed."""
    return features_from_dict(_parsed(read_text(path), str(path)), str(path))


def save_features(features: Features, path: Path) -> None:
    """Write a file atomically, one line for each key."""
    lines = [
        f"    {json.dumps(key)}: {{\n"
        + ",\n".join(f"      {json.dumps(n)}: {json.dumps(value, ensure_ascii=False)}" for n, value in item.items())
        + "\n    }"
        for key, item in features_to_dict(features)["features"].items()
    ]
    inner = "{\n" + ",\n".join(lines) + "\n  }" if lines else "{}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f'{{\n  "format": {_FORMAT},\n  "features": {inner}\n}}\n')
    except OSError as error:
        raise RunError(f"{path} could not be written: {error.strerror or error}") from error


def _plain(feature: Feature) -> dict[str, Any]:
    values = ((name, getattr(feature, name)) for name in _KEYS)
    return {n: list(value) if n in _LISTS else value for n, value in values if value is not None and value != ""}


def _feature(data: object, where: str) -> Feature:
    given, found = _mapping(data, where), dict[str, Any]()
    for key, value in given.items():
        if key not in _KEYS:
            raise ConfigError(f"{where}: {key} is unknown; there are {', '.join(_KEYS)}")
        if value is not None:
            found[key] = _value(key, value, where)
    if "type" not in found:
        raise ConfigError(f"{where}: type is missing")
    try:
        return Feature(**found)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _classic(text: str, where: str) -> Feature:
    """ReAgent's JSON text of one feature. It has constants of all types; only those of the feature's type are taken."""
    data = _mapping(_parsed(text, where), where)
    if unknown := sorted(data.keys() - {*_CLASSIC, "feature_type"}):
        raise ConfigError(f"{where}: {unknown[0]} is unknown; there are feature_type, {', '.join(_CLASSIC)}")
    kind = data.get("feature_type")
    if not isinstance(kind, str):
        raise ConfigError(f"{where}: feature_type={kind} must be text")
    mine = {*needed_keys(kind.lower()), "min_value", "max_value"}
    return _feature({"type": kind.lower(), **{key: value for key, value in data.items() if key in mine}}, where)


def _value(key: str, value: object, where: str) -> Any:
    if key in ("type", "note"):
        if not isinstance(value, str):
            raise ConfigError(f"{where}: {key}={_shown(value)} must be text")
        return value
    if key not in _LISTS:
        return _number(value, f"{where}: {key}={_shown(value)} must be a number")
    if not isinstance(value, list):
        raise ConfigError(f"{where}: {key}={_shown(value)} must be a list of numbers")
    return tuple(
        _number(item, f"{where}: {key} holds {_shown(item)}, not a number") for item in cast(list[object], value)
    )


def _number(value: object, refusal: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(refusal)
    try:
        return float(value)
    except OverflowError:
        raise ConfigError(f"{refusal} that float64 can hold") from None


def _mapping(data: object, where: str) -> Mapping[str, object]:
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: {_shown(data)} must be a mapping")
    return cast(Mapping[str, object], data)


def _parsed(text: str, where: str) -> object:
    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict[str, object]()
        for key, value in pairs:
            if key in found:
                raise ConfigError(f"{where}: {key} is there twice; remove one of them")
            found[key] = value
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{where} is not JSON: {error}") from None


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
