"""Checks of settings that many algorithms have. Each raises `ConfigError`, naming the setting and its value."""

import math
from typing import Any, cast

import numpy as np

from lockstep.errors import ConfigError


def at_least(config: object, least: int, *names: str) -> None:
    """Refuse settings that are less than `least`, or infinite; `None` is allowed."""
    for name in names:
        value = _number(config, name)
        if value is not None and not least <= value < math.inf:
            limit = "" if isinstance(value, int) else ", and finite"
            raise ConfigError(f"{name}={value} must be at least {least}{limit}")


def positive(config: object, *names: str) -> None:
    """Refuse settings that are not positive and finite; `None` is allowed."""
    for name in names:
        value = _number(config, name)
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{name}={value} must be greater than 0, and finite")


def finite(config: object, *names: str) -> None:
    """Refuse settings that are infinite or not a number; `None` is allowed."""
    for name in names:
        value = _number(config, name)
        if value is not None and not math.isfinite(value):
            raise ConfigError(f"{name}={value} must be finite, or null")


def fraction(config: object, *names: str) -> None:
    """Refuse settings outside of [0, 1]; `None` is allowed."""
    for name in names:
        value = _number(config, name)
        if value is not None and not 0 <= value <= 1:
            raise ConfigError(f"{name}={value} must lie in [0, 1]")


def limit(config: object, *names: str) -> None:
    """Refuse limits that are not positive; `None` switches one off."""
    for name in names:
        value = _number(config, name)
        if value is not None and not value > 0:
            raise ConfigError(f"{name}={value} must be greater than 0, or null to switch it off")


def number(config: object, *names: str) -> None:
    """Refuse settings that are not numbers, before they are compared; `None` is not allowed."""
    for name in names:
        if _number(config, name) is None:
            raise ConfigError(f"{name}=None must be a number")


def number_or_none(config: object, *names: str) -> None:
    """Refuse settings that are neither numbers nor `None`, before they are compared."""
    for name in names:
        _number(config, name)


def is_number(value: object) -> bool:
    """Whether a value is a number of Python or numpy; a truth value is none."""
    return not isinstance(value, bool | np.bool_) and isinstance(value, int | float | np.integer | np.floating)


def _number(config: object, name: str) -> float | None:
    value = getattr(config, name)
    if value is not None and not is_number(value):
        raise ConfigError(f"{name}={value!r} must be a number")
    return cast(float | None, value)


def critics(config: Any) -> None:
    """Refuse settings of the critics of SAC and TD3 that cannot train."""
    number(config, "num_critics", "dropout", "target_rate")
    number_or_none(config, "target_critics")
    if config.num_critics < 1:
        raise ConfigError(f"num_critics={config.num_critics} must be at least 1")
    if config.target_critics is not None and not 1 <= config.target_critics <= config.num_critics:
        raise ConfigError(
            f"target_critics={config.target_critics} must lie in [1, num_critics={config.num_critics}], or be null for "
            "all"
        )
    if not 0 <= config.dropout < 1:
        raise ConfigError(f"dropout={config.dropout} must lie in [0, 1); 0 switches it off")
    if not 0 < config.target_rate <= 1:
        raise ConfigError(f"target_rate={config.target_rate} must lie in (0, 1]")
