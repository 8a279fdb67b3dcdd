"""Reading an agent configuration so that no key is lost: each is mapped, has no effect, or is refused."""

import difflib
import fnmatch
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from lockstep.config.settings import leaves
from lockstep.errors import ConfigError

NO_RECURRENT = "recurrent networks are not read from agent configurations; without --agent there is network.recurrent"

_SEED = 42

_ACTIVATIONS = {"tanh": "tanh", "relu": "relu", "elu": "elu", "silu": "silu", "swish": "silu"}
"""Names that the libraries have for our activations."""

ISAAC_POLICY = ("policy",)
"""Isaac Lab's group of the policy's observations, for libraries that give the value network the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """An agent configuration in our words."""

    settings: Mapping[str, Any]
    """Our settings by dotted name."""
    no_effect: Mapping[str, str] = field(default_factory=dict[str, str])
    """Keys that do not change learning, each with the reason."""
    differences: tuple[str, ...] = ()
    """Sentences on what Lockstep does in another way than the library."""


class AgentReader:
    """The leaves of a configuration by dotted name; each is read, has no effect, or is refused at the end.

    Args:
        library: its name, for errors.
        config: nested mappings; lists are leaves.
    """

    def __init__(self, library: str, config: Mapping[str, Any]) -> None:
        self._library = library
        self._left = leaves(config)
        self._absent: list[str] = []
        self._settings: dict[str, Any] = {}
        self._no_effect: dict[str, str] = {}
        self._differences: list[str] = []

    def take(self, name: str, default: Any = None) -> Any:
        """The value of `name`, or `default` where it is absent."""
        if name not in self._left:
            self._absent.append(name)
        return self._left.pop(name, default)

    def needed(self, name: str) -> Any:
        """The value of `name`, which no library has a default for; raises `ConfigError` where it is absent."""
        if name not in self._left:
            near = _misspelled(name, self._left)
            rename = f"rename {near[0]}, or " if near else ""
            raise ConfigError(f"the {self._library} configuration has no {name}; {rename}add it")
        return self.take(name)

    def number(self, name: str, default: float | None = None) -> float:
        """The value of `name` as a number, which is needed without a default: PyYAML reads `5e-4` as text."""
        value = self.needed(name) if default is None else self.take(name, default)
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if math.isnan(number):
            raise self.refusal(name, value, "it must be a number")
        return number

    def number_or_none(self, name: str, default: float | None = None) -> float | None:
        """The value of `name` as a number, or None if it is null, or absent without a default."""
        value = self._left.get(name, default)
        return self.number(name, default) if value is not None else self.take(name)

    def positive_or_none(self, name: str, default: float) -> float | None:
        """The value of `name` as a number greater than 0, or None if it is null."""
        number = self.number_or_none(name, default)
        if number is not None and number <= 0.0:
            raise self.refusal(name, number, "it must be greater than 0")
        return number

    def whole(self, name: str, default: int | None = None) -> int:
        """The value of `name` as a whole number."""
        number = self.number(name, default)
        if not number.is_integer():
            raise self.refusal(name, number, "it must be a whole number")
        return int(number)

    def seed(self) -> int:
        """The seed; where it is null or negative, for which scripts draw one, that of a file without a seed."""
        drawn = "seed" in self._left and self._left["seed"] is None
        number = self.take("seed") if drawn else self.whole("seed", _SEED)
        if number is None or number < 0:
            self.note(f"seed: {number} is drawn anew by the library's scripts, Lockstep takes {_SEED}, or --seed S")
            return _SEED
        return number

    def count(self, name: str, default: int | None = None) -> int:
        """The value of `name` as a whole number of at least 1."""
        number = self.whole(name, default)
        if number < 1:
            raise self.refusal(name, number, "it must be a whole number of at least 1")
        return number

    def units(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """The value of `name` as the units of each layer of a network; `default` where it is null or absent."""
        value = self.needed(name) if default is None else self.take(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, list) or not all(isinstance(units, int) for units in cast("list[Any]", value)):
            raise self.refusal(name, value, "it must be a list of whole numbers, the units of each layer")
        return tuple(cast("list[int]", value))

    def activation(self, name: str, default: str | None = None) -> str:
        """Our name of the activation that `name` has."""
        value = self.needed(name) if default is None else self.take(name, default)
        if str(value) not in _ACTIVATIONS:
            raise self.refusal(name, value, f"known are {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[value]

    def same_activation(self, name: str, policy: str) -> None:
        """Refuse an activation `name` of the value network that is not the policy's."""
        found = self.activation(name, policy)
        if found != policy:
            raise self.refusal(name, found, "policy and value have one activation here")

    def has(self, pattern: str) -> bool:
        """Whether a key that was not read yet matches a pattern such as `network.rnn.*`."""
        return bool(fnmatch.filter(self._left, pattern))

    def set(self, name: str, value: Any) -> None:
        """Record one of our settings."""
        self._settings[name] = value

    def note(self, difference: str) -> None:
        """Record a difference, once."""
        if difference not in self._differences:
            self._differences.append(difference)

    def ignore(self, reason: str, *patterns: str) -> None:
        """Record that the keys matching these patterns have no effect."""
        for pattern in patterns:
            for name in fnmatch.filter(list(self._left), pattern):
                self._no_effect[name] = reason
                del self._left[name]

    def expect(self, name: str, *allowed: Any, why: str) -> None:
        """Refuse `name` unless it is absent or has one of the allowed values, which have no effect."""
        if name in self._left:
            value = self.take(name)
            if value not in allowed:
                raise self.refusal(name, value, why)
            self._no_effect[name] = "this value is the only one"

    def refuse(self, pattern: str, why: str) -> None:
        """Refuse the configuration if a key matches the pattern."""
        for name in fnmatch.filter(self._left, pattern):
            raise self.refusal(name, self._left[name], why)

    def refusal(self, name: str, value: Any, why: str) -> ConfigError:
        """The error for a key that Lockstep's PPO cannot follow."""
        return ConfigError(
            f"the {self._library} configuration sets {name}={value!r}: {why}; choose another --agent, or leave "
            "--agent out and set what you need with --set"
        )

    def finish(self) -> AgentSettings:
        """The settings; raises `ConfigError` for a key that nothing has read."""
        for name, value in self._left.items():
            near = _misspelled(name, self._absent)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise self.refusal(name, value, f"Lockstep does not know this key{meant}")
        return AgentSettings(settings=self._settings, no_effect=self._no_effect, differences=tuple(self._differences))


def _misspelled(name: str, names: Iterable[str]) -> list[str]:
    """The names in the same mapping as `name` that are nearly written the same, nearest first."""
    parent, _, last = name.rpartition(".")
    beside = {other.rpartition(".")[2]: other for other in names if other.rpartition(".")[0] == parent}
    return [beside[near] for near in difflib.get_close_matches(last, beside, cutoff=0.8)]
