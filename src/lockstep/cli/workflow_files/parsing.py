"""Parse JSON and YAML; duplicate keys are errors."""

import json
from pathlib import Path
from typing import Any

import yaml

from lockstep.config import settings
from lockstep.errors import ConfigError


def parsed(path: Path) -> Any:
    """The content of a file; raises `ConfigError` if it cannot be read or a mapping has a duplicate key."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if path.suffix == ".json":
        try:
            return json.loads(text, object_pairs_hook=lambda pairs: _once(path, pairs))
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path}, line {error.lineno} is not JSON: {error.msg}") from None
    data = settings.parse(text, str(path))
    _check(path, yaml.compose(text, Loader=yaml.SafeLoader))
    return data


def _once(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            hint = "; is one of them eval_data_path?" if name == "training_data_path" else ""
            raise ConfigError(f"{path}: {name} is there twice, {found[name]!r} and {value!r}; leave one out{hint}")
        found[name] = value
    return found


def _check(path: Path, node: Any) -> None:
    """Check the nodes of a YAML document for duplicate keys."""
    if isinstance(node, yaml.MappingNode):
        _once(path, [(str(key.value), getattr(value, "value", None)) for key, value in node.value])
        for _, value in node.value:
            _check(path, value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check(path, item)
