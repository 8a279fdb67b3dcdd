"""The search space of a sweep: lists of values and ranges, every combination of them, and random draws."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, cast

from lockstep.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

_RANGE = ("low", "high", "log", "step")
_REDRAWS = 100
"""Draws in a row that repeat earlier ones, after which a space counts as exhausted."""


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, both included; whole numbers if both ends are."""

    low: float
    high: float
    log: bool = False
    """Drawn uniformly on a logarithmic scale."""
    step: float | None = None
    """Only `low`, `low + step`, ..."""

    @property
    def whole(self) -> bool:
        """Whether all values are whole numbers."""
        return all(isinstance(value, int) for value in (self.low, self.high, 1 if self.step is None else self.step))

    def draw(self, random: "np.random.Generator") -> float | int:
        """One value."""
        if self.step is not None:
            steps = int((self.high - self.low) / self.step + 1e-9)
            return self.low + self.step * int(random.integers(steps + 1))
        if self.log:
            extent = 1 if self.whole else 0  # each whole number has the interval up to the next one
            value = math.exp(random.uniform(math.log(self.low), math.log(self.high + extent)))
            return min(int(value), int(self.high)) if self.whole else min(value, self.high)
        if self.whole:
            return int(random.integers(int(self.low), int(self.high) + 1))
        return float(random.uniform(self.low, self.high))


Space = Mapping[str, tuple[Any, ...] | Range]
"""By setting: the values to choose from, or a range."""


def parse_space(data: Any) -> Space:
    """The search space that the entry `settings` of a sweep file describes.

    Raises:
        ConfigError: an entry is neither a value, nor a list, nor a range, or a list has a value twice.
    """
    from lockstep.config.settings import setting_name

    if not isinstance(data, Mapping):
        raise ConfigError(f"settings={data} must be a mapping from settings to lists of values or ranges")
    found: dict[str, tuple[Any, ...] | Range] = {}
    for name, entry in cast(Mapping[str, Any], data).items():
        key = setting_name(str(name))
        if key == "seed":
            raise ConfigError("settings.seed: write seeds, beside settings; results are aggregated over them")
        if isinstance(entry, Range | tuple):
            found[key] = cast("Range | tuple[Any, ...]", entry)
        elif isinstance(entry, Mapping):
            found[key] = _range(key, cast(Mapping[str, Any], entry))
        else:
            values = tuple(cast(list[Any], entry)) if isinstance(entry, list) else (entry,)
            if not values:
                raise ConfigError(f"settings.{key} is an empty list; give at least one value")
            _check_lists(key, values)
            if repeated := [value for index, value in enumerate(values) if value in values[:index]]:
                raise ConfigError(f"settings.{key}: {repeated[0]} occurs twice; both would be the same runs")
            found[key] = values
    return found


def _check_lists(name: str, values: tuple[Any, ...]) -> None:
    """Raise `ConfigError` for values without a list of a setting that takes lists, such as the layers of a network."""
    from lockstep.config.settings import to_yaml

    if name.rpartition(".")[2] in _lists() and not any(isinstance(value, list) or value is None for value in values):
        one = to_yaml([list(values)], one_line=True)
        each = f", or {to_yaml([[value] for value in values], one_line=True)} for {len(values)}"
        raise ConfigError(f"settings.{name} takes lists; write {one} for one of them{each * (len(values) > 1)}")


@cache
def _lists() -> set[str]:
    """The last parts of the names of settings whose values are lists."""
    from lockstep.config.settings import hints_of
    from lockstep.run import Run

    hints = hints_of(Run(task="any"))
    return {name.rpartition(".")[2] for name, hint in hints.items() if "tuple" in str(hint)}


def _range(name: str, entry: Mapping[str, Any]) -> Range:
    unknown = [key for key in entry if key not in _RANGE]
    if unknown or not {"low", "high"} <= set(entry):
        raise ConfigError(
            f"settings.{name}={dict(entry)} must be a list of values, or a range {{low: 1e-4, high: 1e-2, log: true}} "
            "with low, high, and optionally log or step"
        )
    found = Range(**entry)
    numbers = [found.low, found.high, *([] if found.step is None else [found.step])]
    if not all(map(_is_number, numbers)):
        raise ConfigError(f"settings.{name}: low, high and step must be finite numbers, not {numbers}")
    if not isinstance(cast(object, found.log), bool):
        raise ConfigError(f"settings.{name}: log={found.log} must be true or false")
    if not found.low < found.high:
        raise ConfigError(f"settings.{name}: low={found.low} must be less than high={found.high}")
    if found.log and (found.low <= 0 or found.step is not None):
        raise ConfigError(f"settings.{name}: log needs low greater than 0, and no step")
    if found.step is not None and found.step <= 0:
        raise ConfigError(f"settings.{name}: step={found.step} must be greater than 0")
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def grid(space: Space) -> Iterator[dict[str, Any]]:
    """Every combination; the last setting changes first. One empty combination for an empty space."""
    values = [choice for choice in space.values() if isinstance(choice, tuple)]
    for combination in product(*values):
        yield dict(zip(space, combination, strict=True))


def draws(space: Space, number: int, seed: int) -> Iterator[dict[str, Any]]:
    """Up to `number` different random combinations; draw `i` depends on `seed` and `i` alone.

    Fewer where the space has no more.
    """
    from lockstep.world import stream

    seen, repeats, index, found = set[str](), 0, 0, 0
    while found < number and repeats < _REDRAWS:
        random = stream(seed, "sweep", index)
        drawn = {name: _draw(choice, random) for name, choice in space.items()}
        index += 1
        text = json.dumps(drawn, default=str)
        if text in seen:
            repeats += 1
            continue
        seen.add(text)
        repeats, found = 0, found + 1
        yield drawn


def _draw(choice: tuple[Any, ...] | Range, random: "np.random.Generator") -> Any:
    return choice.draw(random) if isinstance(choice, Range) else choice[int(random.integers(len(choice)))]
