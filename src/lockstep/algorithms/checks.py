"""Checks of settings that many algorithms have. Each raises `ConfigError`, naming the setting and its value."""

import math
from typing import cast

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


def _number(config: object, name: str) -> float | None:
    value = getattr(config, name)
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating | None):
        raise ConfigError(f"{name}={value!r} must be a number")
    return cast(float | None, value)


def critics(num_critics: int, target_critics: int | None, dropout: float, target_rate: float) -> None:
    """Refuse settings of the critics of SAC and TD3 that cannot train."""
    if num_critics < 1:
        raise ConfigError(f"num_critics={num_critics} must be at least 1")
    if target_critics is not None and not 1 <= target_critics <= num_critics:
        raise ConfigError(
            f"target_critics={target_critics} must lie in [1, num_critics={num_critics}], or be null for all"
        )
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout={dropout} must lie in [0, 1); 0 switches it off")
    if not 0 < target_rate <= 1:
        raise ConfigError(f"target_rate={target_rate} must lie in (0, 1]")
