"""Normalization of features: the type of each feature, and the constants of its formula.

Types, constants and names are those of ReAgent. `lockstep.data.formulas` has the formula of each type.

Shapes: n rows, F features, S numbers after normalization.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lockstep.data.formulas import FORMULAS, LARGEST_RAW, MIN_LAMBDA, TYPES, FeatureType, Group
from lockstep.errors import ConfigError

_NEEDED: Mapping[str, tuple[str, ...]] = {
    "continuous": ("mean", "stddev"),
    "boxcox": ("boxcox_lambda", "boxcox_shift", "mean", "stddev"),
    "quantile": ("quantiles",),
    "enum": ("possible_values",),
    "continuous_action": ("min_value", "max_value"),
    "discrete_action": ("min_value",),
}
_ABOUT = ("type", "min_value", "max_value", "note")  # allowed for every type


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """How one feature is normalized. Raises `ConfigError` if constants are missing, superfluous or out of range."""

    type: FeatureType
    mean: float | None = None
    """`continuous`: of the values; `boxcox`: of the transformed ones."""
    stddev: float | None = None
    """Standard deviation of the same values, greater than 0."""
    boxcox_lambda: float | None = None
    boxcox_shift: float | None = None
    """Added before the power is taken."""
    possible_values: tuple[float, ...] | None = None
    """`enum`: one output each, in this order."""
    quantiles: tuple[float, ...] | None = None
    """`quantile`: ascending, at least two."""
    min_value: float | None = None
    """Smallest value seen; used by the types of actions."""
    max_value: float | None = None
    """Largest value seen; used by `continuous_action`."""
    note: str = ""
    """Why it has this type; for people only."""

    def __post_init__(self) -> None:
        """Reject missing constants, constants of other types, and numbers outside the domain of the formula."""
        if self.type not in TYPES:
            raise ConfigError(f"type={self.type} is unknown; there are {', '.join(TYPES)}")
        needed = needed_keys(self.type)
        for name in (item.name for item in fields(self)):
            value = getattr(self, name)
            if name in needed and value is None:
                raise ConfigError(f"{name} is missing, which type={self.type} needs")
            if name not in needed and name not in _ABOUT and value is not None:
                raise ConfigError(f"{name} is not used by type={self.type}; remove it, or change the type")
            numbers = cast("tuple[Any, ...]", value if isinstance(value, tuple) else (value,))
            if not all(math.isfinite(number) for number in numbers if isinstance(number, float)):
                raise ConfigError(f"{name}={value} must be finite")
        if refusal := _refusal(self):
            raise ConfigError(refusal)

    @property
    def size(self) -> int:
        """Numbers after normalization."""
        return 1 if self.possible_values is None else len(self.possible_values)


def needed_keys(kind: str) -> tuple[str, ...]:
    """The fields of `Feature` that the formula of a type needs."""
    return _NEEDED.get(kind, ())


class Features:
    """Features by id, in the order of their columns, which is that of `ordered`.

    Earlier versions ordered by name alone. What they stored keeps its order: columns of data and parameters of policies
    have it. They are equal if they normalize alike, whatever their notes.

    Attributes:
        ids: of the raw columns [F].
        size: numbers after normalization (S).
        names: of these numbers: an id, or `id=value` of an `enum`.
    """

    def __init__(self, features: Mapping[str, Feature]) -> None:
        stored = tuple(features)
        ids = stored if stored == by_name(stored) else ordered(stored)
        self._features = {name: features[name] for name in ids}
        self.ids = tuple(self._features)
        self.size = sum(feature.size for feature in self._features.values())
        self.names = tuple(name for key, feature in self._features.items() for name in _names(key, feature))

    def __getitem__(self, key: str) -> Feature:
        return self._features[key]

    def __len__(self) -> int:
        return len(self._features)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Features) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def normalize(self, value: NDArray[np.float64]) -> NDArray[np.float32]:
        """Raw values [n, F], NaN where absent, to normalized ones [n, S], 0 where absent."""
        out = np.zeros((len(value), self.size), np.float32)
        for group in self.groups:
            raw = value[:, group.columns]
            present = ~np.isnan(raw)
            known = bool(present.all())
            raw = np.clip(raw, -LARGEST_RAW, LARGEST_RAW)
            with np.errstate(over="ignore"):  # clamped afterwards
                normal = FORMULAS[group.type](raw if known else np.where(present, raw, 0.0), group.constants)
            if known:
                out[:, group.outputs] = normal
                continue
            if group.type == "enum":
                present = present[:, group.constants["of"]]
            out[:, group.outputs] = np.where(present, normal, 0.0)
        return out

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The features grouped by type. `normalize` and the torch module both use them."""
        kinds = [feature.type for feature in self._features.values()]
        return tuple(self._group(kind) for kind in TYPES if kind in kinds)

    @cached_property
    def digest(self) -> str:
        """Hex digest of ids, types and constants; notes are not included."""
        exact = [
            [key, item.type, *(getattr(item, name) for name in needed_keys(item.type))] for key, item in self.items()
        ]
        return hashlib.blake2b(json.dumps(exact).encode(), digest_size=16).hexdigest()

    def items(self) -> Iterable[tuple[str, Feature]]:
        """Ids and features, in order."""
        return self._features.items()

    def _group(self, kind: FeatureType) -> Group:
        columns, outputs, chosen, begin = list[int](), list[int](), list[Feature](), 0
        for column, feature in enumerate(self._features.values()):
            if feature.type == kind:
                columns.append(column)
                outputs.extend(range(begin, begin + feature.size))
                chosen.append(feature)
            begin += feature.size
        return Group(kind, np.array(columns), np.array(outputs), _constants(kind, chosen))


def _refusal(of: Feature) -> str | None:
    """The error in the constants of a feature; None if they are valid."""
    if of.stddev is not None and not of.stddev > 0:
        return f"stddev={of.stddev} must be greater than 0"
    if (q := of.quantiles) is not None and not (len(q) > 1 and all(0 < b - a < math.inf for a, b in pairwise(q))):
        return f"quantiles={list(q)} must be at least two numbers, each above the last"
    if (possible := of.possible_values) is not None and (not possible or len(set(possible)) < len(possible)):
        return f"possible_values={list(possible)} must be numbers, each once"
    low, high = of.min_value, of.max_value
    if of.type == "continuous_action" and low is not None and high is not None and not 0 < high - low < math.inf:
        return f"max_value={high} must be greater than min_value={low}"
    return None


def ordered(ids: Iterable[str]) -> tuple[str, ...]:
    """Ids as `by_name`, but those of one word with a number each by the number: x_2 before x_10, as in simulators."""
    names = by_name(ids)
    found = [re.fullmatch(r"(.*[^0-9])([0-9]+)", name, re.DOTALL) for name in names]
    counted = [(match[1], int(match[2]), match[0]) for match in found if match and match[1] != "-"]
    one_word = len(counted) == len(names) and len({word for word, _, _ in counted}) == 1
    return tuple(name for _, _, name in sorted(counted)) if one_word else names


def by_name(ids: Iterable[str]) -> tuple[str, ...]:
    """Ids that are whole numbers by their value, then all others by name."""

    def key(name: str) -> tuple[bool, int, str]:
        number = name.removeprefix("-")
        whole = number.isascii() and number.isdigit()
        return not whole, int(name) if whole else 0, name

    return tuple(sorted(ids, key=key))


def numbered(ids: Sequence[str]) -> bool:
    """Whether ids are numbers, or one word with a number each, as action_0 and action_1, in ascending order."""
    found = [re.fullmatch(r"(.*?)(\d+)", one) for one in ids]
    parts = [(match[1], int(match[2])) for match in found if match]
    one_word = len(parts) == len(ids) and len({word for word, _ in parts}) == 1
    return len(ids) == 1 or (one_word and parts == sorted(parts))


def _names(key: str, feature: Feature) -> list[str]:
    return [key] if feature.possible_values is None else [f"{key}={value:.17g}" for value in feature.possible_values]


def _constants(kind: FeatureType, features: list[Feature]) -> dict[str, NDArray[Any]]:
    if kind == "quantile":
        count = np.array([len(feature.quantiles or ()) - 1 for feature in features])
        left, width = np.zeros((2, len(features), max(count)))
        width[:] = np.inf
        for i, feature in enumerate(features):
            left[i, : count[i]] = (feature.quantiles or ())[:-1]
            width[i, : count[i]] = np.diff(feature.quantiles or ())
        return {"left": left, "width": width, "count": count.astype(np.float64)}
    if kind == "enum":
        values = [feature.possible_values or () for feature in features]
        of = np.repeat(np.arange(len(values)), [len(some) for some in values])
        return {"values": np.array([v for some in values for v in some], np.float64), "of": of}
    constants = {n: np.array([getattr(item, n) for item in features], np.float64) for n in needed_keys(kind)}
    if kind == "boxcox":
        zero = np.abs(constants["boxcox_lambda"]) < MIN_LAMBDA
        constants["boxcox_lambda"] = np.where(zero, 0.0, constants["boxcox_lambda"])
    return constants
