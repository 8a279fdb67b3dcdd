"""Identify the type of each feature and its constants from a sample of its values.

The type is the first of these that fits the present values:

1. `binary`: all are 0 or 1, or a constant that is absent in some rows.
2. `probability`: all are in [0, 1].
3. `enum`: all are whole numbers from 0, at most `max_unique_enum_values` distinct ones.
4. `boxcox`: K2 is above 13.8, which 1 of 1000 normal samples exceeds; K2 after the transform is below a tenth of that
   and at most `quantile_k2_threshold`; the maximum-likelihood lambda is outside [0.9, 1.1]. Unless `skip_box_cox`.
5. `quantile`: K2 is above `quantile_k2_threshold`. Unless `skip_quantiles`.
6. `continuous`.

K2 is D'Agostino and Pearson's (1973) statistic of the distance from a normal distribution; it grows with the number of
values. With fewer than 20 values a feature is `binary` or `continuous`. The rules and their names are ReAgent's, except
for the 13.8. As there, standard deviations are at least `min_stddev`, so that small variations are not scaled up.
"""

import difflib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lockstep.config import settings
from lockstep.data.features import Feature, Features
from lockstep.data.formulas import LARGEST, TYPES, FeatureType, Values, boxcox
from lockstep.data.packages import import_optional
from lockstep.errors import ConfigError

_MIN_SAMPLES = 20
_K2_OF_NORMAL = 13.8  # -2 ln 0.001: K2 of normal values is distributed as chi-squared with 2 degrees of freedom
_LAMBDAS_LIKE_ONE = (0.9, 1.1)
_MARGIN = 1e-4  # the smallest value is shifted to at least this before its power is taken
_MAX_BOXCOX_STDDEV = 1e8
_MOST_POSSIBLE_VALUES = 10_000  # each is a column of every row
_BOUNDS = "null, or a lower and an upper bound, such as [-1, 1]"


@dataclass(frozen=True, slots=True, kw_only=True)
class NormParams:
    """Thresholds of the types, named as in `norm_params` of ReAgent's workflow files."""

    num_samples: int = 100_000
    """Rows of the sample."""
    max_unique_enum_values: int = 10
    """Most distinct values of an `enum`."""
    quantile_size: int = 20
    """Intervals of a `quantile`, each with as many values; fewer where values repeat."""
    quantile_k2_threshold: float = 1000.0
    """Features further from normal than this become a `quantile`."""
    skip_box_cox: bool = False
    """Never choose `boxcox`."""
    skip_quantiles: bool = False
    """Never choose `quantile`."""
    feature_overrides: dict[str, str] = field(default_factory=dict[str, str])
    """Types by feature id, which override the identified ones."""
    min_stddev: float = 1.0
    """Lower bound of standard deviations."""
    action_bounds: tuple[float, ...] | None = field(default=None, metadata={settings.MUST_BE: _BOUNDS})
    """Continuous actions: the lower and the upper bound of every number; `null`: the extremes in the log."""

    def __post_init__(self) -> None:
        """Check all values, and convert types to lower case."""
        for name in ("num_samples", "max_unique_enum_values", "quantile_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("quantile_k2_threshold", "min_stddev"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 0, and finite")
        if (bounds := self.action_bounds) is not None and not (len(bounds) == 2 and bounds[0] < bounds[1]):
            raise ConfigError(f"action_bounds={list(bounds)} must be {_BOUNDS}")
        if bounds is not None and max(map(abs, bounds)) > LARGEST:
            raise ConfigError(
                f"action_bounds={list(bounds)} are too large for 32 bits; give bounds within ±{LARGEST:.2g}, or null"
            )
        types = {str(key): kind.lower() for key, kind in self.feature_overrides.items()}
        for key, kind in types.items():
            if kind not in TYPES:
                raise ConfigError(f"feature_overrides: {key}={kind} is not a type; there are {', '.join(TYPES)}")
        object.__setattr__(self, "feature_overrides", types)


CONTINUOUS = NormParams(skip_box_cox=True, skip_quantiles=True, min_stddev=0.01)
"""Defaults where actions are continuous. Positions and angles of robots vary by less than 1, and a policy must tell
apart what lies beyond the outermost quantile."""


def bounded(bounds: Mapping[str, tuple[float, float]], params: NormParams) -> Features:
    """The features of a continuous action: each number is mapped from its bounds to [-1, 1].

    Args:
        bounds: the smallest and the largest number in the log, by id.
        params: with `action_bounds`, which replace those of the log.

    Raises:
        ConfigError: a number never varies, or lies outside of `action_bounds`.
    """
    found: dict[str, Feature] = {}
    for key, logged in bounds.items():
        if params.action_bounds is None:
            (low, high), note = logged, "the extremes in the log"
        else:
            (low, high), note = (params.action_bounds[0], params.action_bounds[1]), "action_bounds"
        if exceeds(*logged, low, high):
            raise ConfigError(
                f"action_bounds={[low, high]}, but the log has actions from {logged[0]:g} to {logged[1]:g} (number "
                f"{key}); widen them, or give each number its own: --action-features FILE"
            )
        if low == high:
            raise ConfigError(
                f"number {key} of the action is {low:g} in every row, which gives no bounds; set them: --set "
                "action_bounds=[-1,1] for all numbers, or --action-features FILE with bounds for each (or say --kind "
                "parametric, if actions are chosen among candidates)"
            )
        found[key] = Feature(type="continuous_action", min_value=low, max_value=high, note=note)
    return Features(found)


def exceeds(least: ArrayLike, most: ArrayLike, low: ArrayLike, high: ArrayLike) -> NDArray[np.bool_]:
    """Whether numbers of a log lie outside of bounds. In a log of float32, 0.4 is 0.4000000060 and does not."""
    with np.errstate(over="ignore"):
        lowest = np.minimum(low, np.asarray(low, np.float32).astype(np.float64))
        highest = np.maximum(high, np.asarray(high, np.float32).astype(np.float64))
    return (np.asarray(least) < lowest) | (np.asarray(most) > highest)


def identify(ids: Sequence[str], sample: Values, params: NormParams | None = None) -> Features:
    """The features of a sample [n, F] of raw values, NaN where absent; `ids` are those of its columns.

    Raises:
        ConfigError: an override does not suit the values, or names an unknown feature.
    """
    params = params or NormParams()
    names = tuple(ids)
    for key in params.feature_overrides:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1) or names[:8]
            raise ConfigError(f"feature_overrides: the log has no feature {key}; it has {', '.join(near)}")
    return Features({key: _identified(key, sample[:, column], params) for column, key in enumerate(names)})


def _identified(key: str, column: Values, params: NormParams) -> Feature:
    values = column[~np.isnan(column)]
    kind = params.feature_overrides.get(key)
    note = f"{len(values)} of {len(column)} sampled rows have it"
    if kind is not None:
        return _as(kind, key, values, params, note + "; its type was given")  # pyright: ignore[reportArgumentType]
    if not len(values):
        return Feature(type="continuous", mean=0.0, stddev=1.0, note=note)
    if ((values == 0) | (values == 1)).all():
        return _as("binary", key, values, params, note)
    if len(values) < _MIN_SAMPLES:
        return _as("continuous", key, values, params, f"{note}, too few to tell more")
    low, high, whole = values.min(), values.max(), (values == np.floor(values)).all()
    if low == high and len(values) < len(column):
        return _as("binary", key, values, params, f"{note}, always as {low:g}")
    if low >= 0 and high <= 1:
        return _as("probability", key, values, params, note)
    if low >= 0 and whole and len(np.unique(values)) <= params.max_unique_enum_values:
        return _as("enum", key, values, params, note)
    return _by_distribution(key, values, params, note)


def _by_distribution(key: str, values: Values, params: NormParams, note: str) -> Feature:
    """`continuous`, or a type whose formula brings the values closer to normal."""
    plain = _k2(values)
    if not math.isfinite(plain):  # a constant
        return _as("continuous", key, values, params, note)
    note = f"{note}; K2 {plain:.4g}"
    if plain > _K2_OF_NORMAL and not params.skip_box_cox and (found := _boxcox(values)) is not None:
        lam, shift = found
        powered = boxcox(values, lam, shift)
        after = _k2(powered)
        note = f"{note}, with Box-Cox (lambda {lam:.4g}) {after:.4g}"
        better = plain > 10 * after and after <= params.quantile_k2_threshold
        low, high = _LAMBDAS_LIKE_ONE
        if better and not low <= lam <= high and 0 < _moments(powered)[1] < _MAX_BOXCOX_STDDEV:
            return _as("boxcox", key, values, params, note)
    if not params.skip_quantiles and plain > params.quantile_k2_threshold and len(_quantiles(values, params)) > 1:
        return _as("quantile", key, values, params, note)
    return _as("continuous", key, values, params, note)


def _as(kind: FeatureType, key: str, values: Values, params: NormParams, note: str) -> Feature:  # noqa: C901  # a type each
    """A feature of this type, with constants of its values."""
    low, high = (float(values.min()), float(values.max())) if len(values) else (None, None)
    constants: dict[str, Any] = {}
    match kind:
        case "continuous":
            constants = _standard(values, params)
        case "boxcox":
            if (found := _boxcox(values)) is None:
                raise _unsuitable(key, kind, "its values give no lambda")
            lam, shift = found
            constants = {"boxcox_lambda": lam, "boxcox_shift": shift, **_standard(boxcox(values, lam, shift), params)}
        case "quantile":
            if len(quantiles := _quantiles(values, params)) < 2:
                raise _unsuitable(key, kind, "there are no two different values in the sample")
            constants = {"quantiles": quantiles}
        case "enum":
            possible = np.unique(values)
            if not 1 <= len(possible) <= _MOST_POSSIBLE_VALUES:
                raise _unsuitable(key, kind, f"the sample holds {len(possible)} different values")
            constants = {"possible_values": tuple(possible.tolist())}
        case "probability":
            if low is not None and high is not None and not 0 <= low <= high <= 1:
                raise _unsuitable(key, kind, f"the sample holds values from {low:g} to {high:g}")
        case "continuous_action" | "discrete_action":
            if low is None or (low == high and kind == "continuous_action"):
                raise _unsuitable(key, kind, "there are no two different values in the sample")
        case "binary" | "clip_log" | "do_not_preprocess":
            pass
    return Feature(type=kind, min_value=low, max_value=high, note=note, **constants)


def _unsuitable(key: str, kind: str, why: str) -> ConfigError:
    return ConfigError(f"feature_overrides: {key}={kind}, but {why}; give it another type, or none")


def _standard(values: Values, params: NormParams) -> dict[str, float]:
    mean, stddev = _moments(values)
    return {"mean": mean, "stddev": max(stddev, params.min_stddev) or 1.0}


def _moments(values: Values) -> tuple[float, float]:
    """Mean and standard deviation (of n - 1), without overflow."""
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0 or not math.isfinite(largest):
        return 0.0, 0.0 if largest == 0 else math.inf
    scaled = values / largest
    stddev = 0.0 if len(values) < 2 or np.ptp(scaled) == 0 else float(scaled.std(ddof=1))
    return float(scaled.mean()) * largest, min(stddev * largest, float(np.finfo(np.float64).max))


def _k2(values: Values) -> float:
    """Distance of the values from a normal distribution; NaN if constant, infinity if not finite."""
    mean, stddev = _moments(values)
    if not math.isfinite(stddev) or stddev == 0:
        return math.nan if stddev == 0 else math.inf
    stats = import_optional("scipy.stats", "offline")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # nearly constant values give NaN, which callers handle
        return float(stats.normaltest(values / stddev - mean / stddev).statistic)


def _boxcox(values: Values) -> tuple[float, float] | None:
    """The maximum-likelihood lambda, and the shift that makes all values positive; None without a maximum."""
    if len(values) < _MIN_SAMPLES or (low := float(values.min())) == values.max():
        return None
    shift = max(0.0, _MARGIN - low)
    stats = import_optional("scipy.stats", "offline")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # powers beyond float64 are discarded
        try:
            lam = float(stats.boxcox_normmax(np.maximum(values + shift, _MARGIN), method="mle"))
        except (ValueError, RuntimeError):  # no maximum found
            return None
        finite = math.isfinite(lam) and np.isfinite(boxcox(values, lam, shift)).all()
    return (lam, shift) if finite else None


def _quantiles(values: Values, params: NormParams) -> tuple[float, ...]:
    """Distinct borders of intervals with equal numbers of values."""
    if not len(values):
        return ()
    return tuple(np.unique(np.quantile(values, np.linspace(0, 1, params.quantile_size + 1))).tolist())
