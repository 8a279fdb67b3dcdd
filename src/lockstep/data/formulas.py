"""The normalization formula of each type of feature.

| type | result for x | numbers |
|---|---|---|
| `binary` | 1 if x is not 0, else 0 | 1 |
| `probability` | log(p / (1 - p)), p = x within [1e-5, 1 - 1e-5] | 1 |
| `continuous` | (x - mean) / stddev | 1 |
| `boxcox` | (z - mean) / stddev, z = (y^lambda - 1) / lambda, y = max(x + shift, 1e-6); log y where lambda is 0 | 1 |
| `quantile` | share of the quantiles' intervals below x, linear within an interval: 0 at the first, 1 at the last | 1 |
| `clip_log` | log max(x, 1e-6) | 1 |
| `enum` | 1 at the possible value that x equals, else 0; all 0 for any other value | one each |
| `continuous_action` | 2 (x - min) / (max - min) - 1, within -(1 - 1e-6) and 1 - 1e-6 | 1 |
| `discrete_action` | x - min | 1 |
| `do_not_preprocess` | x | 1 |

Results without other bounds are clamped to +-11.513 (the logit of 1 - 1e-5), those of `discrete_action` and
`do_not_preprocess` to the range of float32.

Raw values are float64, and NaN if the feature is absent. Normalized values are float32, and 0 if the feature is absent.
All arithmetic is float64, so that large ids and timestamps keep their precision.
`lockstep.torch.scoring.preprocess` has the same formulas as a module; golden tables test both, and exported policies.

Shapes: n rows, G features of one type.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

FeatureType = Literal[
    "binary",
    "probability",
    "continuous",
    "boxcox",
    "quantile",
    "clip_log",
    "enum",
    "continuous_action",
    "discrete_action",
    "do_not_preprocess",
]
TYPES: tuple[FeatureType, ...] = get_args(FeatureType)
LIMIT = 11.513
"""Normalized values without other bounds are clamped to +-LIMIT."""
MIN_POSITIVE = 1e-6
"""The smallest argument of logarithms and powers, and the smallest distance of a `continuous_action` from +-1."""
MIN_PROBABILITY = 1e-5
"""The smallest distance of a probability from 0 and 1 before its logit is taken."""
LARGEST = float(np.finfo(np.float32).max)
"""Bound of normalized values, and of what is stored as it is: the largest float32."""
LARGEST_RAW = float(np.finfo(np.float64).max)
"""Bound of raw values, since differences of infinities are undefined."""
MIN_LAMBDA = 1e-6
"""A smaller lambda counts as 0, since (y^lambda - 1) / lambda would lose precision."""


Values = NDArray[np.float64]
Constants = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Group:
    """The features of one type.

    Attributes:
        type: the type, which determines the formula.
        columns: their columns among the F raw features [G].
        outputs: their columns among the S normalized values: [G], or one for each possible value of an `enum`.
        constants: float64 arrays by name, [G] each. `quantile`: `left` and `width` of the intervals
            [G, largest number of intervals], padded with infinite widths, and `count`, the number of intervals.
            `enum`: `values`, and for each of them `of`, the index of its feature.
    """

    type: FeatureType
    columns: NDArray[np.int64]
    outputs: NDArray[np.int64]
    constants: Mapping[str, NDArray[Any]]


def boxcox(x: Values, lam: Values | float, shift: Values | float) -> Values:
    """The Box-Cox transform (Box and Cox, 1964), before it is standardized."""
    y, zero = np.maximum(x + shift, MIN_POSITIVE), np.abs(lam) < MIN_LAMBDA
    power = np.where(zero, 1.0, lam)
    return np.where(zero, np.log(y), (y**power - 1.0) / power)


def _clamp(x: Values) -> Values:
    return np.clip(x, -LIMIT, LIMIT)


def _float32(x: Values) -> Values:
    return np.clip(x, -LARGEST, LARGEST)


def _binary(x: Values, _: Constants) -> Values:
    return (x != 0).astype(np.float64)


def _probability(x: Values, _: Constants) -> Values:
    p = np.clip(x, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return _clamp(np.log(p / (1 - p)))


def _continuous(x: Values, of: Constants) -> Values:
    return _clamp((x - of["mean"]) / of["stddev"])


def _boxcox(x: Values, of: Constants) -> Values:
    return _continuous(boxcox(x, of["boxcox_lambda"], of["boxcox_shift"]), of)


def _quantile(x: Values, of: Constants) -> Values:
    below = np.zeros_like(x)
    for left, width in zip(of["left"].T, of["width"].T, strict=True):
        below += np.clip((x - left) / width, 0.0, 1.0)
    return below / of["count"]


def _clip_log(x: Values, _: Constants) -> Values:
    return _clamp(np.log(np.maximum(x, MIN_POSITIVE)))


def _enum(x: Values, of: Constants) -> Values:
    return (x[:, of["of"]] == of["values"]).astype(np.float64)


def _continuous_action(x: Values, of: Constants) -> Values:
    low, high, bound = of["min_value"], of["max_value"], 1 - MIN_POSITIVE
    return np.clip(2 * (x - low) / (high - low) - 1, -bound, bound)


def _discrete_action(x: Values, of: Constants) -> Values:
    return _float32(x - of["min_value"])


def _identity(x: Values, _: Constants) -> Values:
    return _float32(x)


FORMULAS: Mapping[FeatureType, Callable[[Values, Constants], Values]] = {
    "binary": _binary,
    "probability": _probability,
    "continuous": _continuous,
    "boxcox": _boxcox,
    "quantile": _quantile,
    "clip_log": _clip_log,
    "enum": _enum,
    "continuous_action": _continuous_action,
    "discrete_action": _discrete_action,
    "do_not_preprocess": _identity,
}
"""By type: a function of present raw values [n, G] and the constants; returns [n, G], or one column per enum value."""
