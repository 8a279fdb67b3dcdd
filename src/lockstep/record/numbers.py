"""What a loop gives to be recorded, as plain values of Python, or refused by its name before anything is written."""

import json
from collections.abc import Mapping
from contextlib import suppress
from numbers import Integral, Real
from typing import Any, cast

from lockstep.config import settings
from lockstep.errors import ConfigError
from lockstep.record.json_lines import finite


def scalars(metrics: Any) -> dict[str, float]:
    """Metrics as numbers of Python. Raises `ConfigError` unless they are numbers, or arrays of one element, by name."""
    if not isinstance(metrics, Mapping):
        raise ConfigError(f"metrics={metrics!r} must be numbers by name, such as {{'loss/value': 0.5}}")
    found: dict[str, float] = {}
    for name, value in cast("Mapping[str, Any]", metrics).items():
        number = _metric(value)
        if number is None:
            raise ConfigError(f"metric {name}={value!r} must be one number; leave it out, or reduce it to its mean")
        if name in ("step", "time_s"):
            raise ConfigError(f"metric {name} would replace the {name} of its line; give it another name")
        found[name] = number
    return found


def whole(value: Any, name: str = "step") -> int:
    """A count of at least 0, also of an array of one element, or of a float that is whole.

    Raises:
        ConfigError: it is none; names it.
    """
    number = _number(value)
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, Integral) or number < 0:
        raise ConfigError(f"{name}={value!r} must be a whole number of at least 0; give int(...) of it")
    return int(number)


def seconds(value: Any) -> float:
    """The number `time_s` of a line, to a microsecond. Raises `ConfigError` for what is no number."""
    number = _number(value)
    if number is None:
        raise ConfigError(f"time_s={value!r} must be one number, the seconds of training so far")
    return round(float(number), 6)


def row(values: Any, name: str) -> list[float]:
    """One number for each episode, of a list or an array. Raises `ConfigError`, which names them, for anything else."""
    with suppress(TypeError):
        listed: list[Any] = values.tolist() if hasattr(values, "tolist") else [*values]
        numbers = [number for value in listed if (number := _metric(value)) is not None]
        if len(numbers) == len(listed):
            return numbers
    raise ConfigError(f"{name}={values!r} must be a list or an array [N] of numbers, one for each episode")


def json_object(entries: Any, what: str) -> dict[str, Any]:
    """A mapping of values as JSON holds them; arrays become lists, and paths text.

    Raises:
        ConfigError: it is no mapping, or an entry cannot be written; names it.
    """
    if not isinstance(entries, Mapping):
        raise ConfigError(f"{what}={entries!r} must be a mapping, such as {{'status': 'finished'}}")
    found: dict[str, Any] = {}
    for name, value in cast("Mapping[Any, Any]", entries).items():
        try:
            found[str(name)] = finite(settings.plain(value))
            json.dumps(found[str(name)], allow_nan=False)
        except (TypeError, ValueError, RuntimeError):
            raise ConfigError(
                f"{what} {name}={value!r} cannot be written to a file; give numbers, text, lists or mappings of them"
            ) from None
    return found


def _metric(value: Any) -> float | None:
    """`_number`, with truth values as 0.0 and 1.0: readers of a line do not take `true` for a number."""
    number = _number(value)
    return float(number) if isinstance(number, bool) else number


def _number(value: Any) -> float | None:
    """The number of Python, of NumPy or of an array of one element; None for anything else."""
    with suppress(TypeError, ValueError, RuntimeError):  # of several elements
        number = value.item() if hasattr(value, "item") else value
        if isinstance(number, Real):  # others than these two, as fractions, are nothing to JSON
            return number if isinstance(number, int | float) else float(number)
    return None
