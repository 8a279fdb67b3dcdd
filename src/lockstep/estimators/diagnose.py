"""Diagnostics of a log: effective sample sizes, reasons to skip estimators, and warnings."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lockstep.estimators.importance import DECISION, TRAJECTORY
from lockstep.estimators.trajectories import Floats, Sums, scale_of

FEW = 20
"""Intervals from fewer trajectories, or from a smaller effective sample size, are unreliable."""
NO_DENSITY = (
    "the policy takes the same continuous action whenever it is in a state: it has no density, and importance weights "
    "are ratios of densities (iql and cql have one if they learn with policy=sampled)"
)
NO_CHOICES = (
    "the log does not say which actions were possible (possible_actions), and where only the logged one is known every "
    "policy takes it"
)
_MAX_MEAN_ERROR = 0.1
"""Mean row weights farther from 1 than this, and than their sampling error, cause a warning."""
_MAX_UNLOGGED = 0.01
"""Higher probabilities of actions that do not occur in the log cause a warning."""

_NEED_MODELS = ("decision_direct", "fitted_q")
_NEED_WEIGHTS_AND_MODELS = ("decision_dr", "sequential_dr", "weighted_sequential_dr", "magic")
_NEED_WEIGHTS = tuple(
    name for name in (*DECISION, *TRAJECTORY) if name not in (*_NEED_MODELS, *_NEED_WEIGHTS_AND_MODELS)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatistics:
    """Counts of a log that are not in the sums over trajectories."""

    rows: int
    """The number of rows."""
    no_propensity: int = 0
    """Rows without a propensity."""
    certain: int = 0
    """Rows whose propensity is 1."""
    gaps: int = 0
    """Rows inside a trajectory after which rows are missing."""
    seen: bool = False
    """Whether the policy was trained on these rows."""
    continuous: bool = False
    """Whether actions are continuous: their propensities are densities."""
    no_density: bool = False
    """Whether the policy always takes the same continuous action in a state."""
    no_choices: bool = False
    """Whether the actions are candidates of which the log, or a part of it, has only the logged ones."""

    @property
    def has_ratio(self) -> bool:
        """Whether there are importance weights."""
        return not (self.no_propensity or self.no_density or self.no_choices)


def effective_sizes(sums: Sums) -> dict[str, float | None]:
    """(sum w)^2 / sum w^2 (Kong, 1992) of the ratios of rows and of the weights of trajectories.

    This many rows or trajectories, if the policy had collected them itself, would be as informative as the log. None
    without propensities.
    """
    if not sums.has_ratio:
        return {"rows": None, "trajectories": None}
    return {
        "rows": _effective(sums.ratio, sums.ratio_squared),
        "trajectories": _effective(sums.weight, sums.weight_squared),
    }


def reasons(sums: Sums, statistics: LogStatistics) -> dict[str, str]:
    """Why estimators are skipped, by the estimator's name."""
    if statistics.no_choices:
        return dict.fromkeys((*DECISION, *TRAJECTORY), NO_CHOICES)
    skipped: dict[str, str] = {}
    if not sums.has_ratio:
        missing = statistics.no_propensity
        which = "no row of the log has" if missing == statistics.rows else f"{missing} of {statistics.rows} rows lack"
        name = "density (log_probability)" if statistics.continuous else "propensity (action_probability)"
        why = f"{which} a {name}, and importance weights need one for every row"
        if statistics.no_density:
            why = f"{NO_DENSITY}; and {why}" if missing else NO_DENSITY
        skipped |= dict.fromkeys((*_NEED_WEIGHTS, *_NEED_WEIGHTS_AND_MODELS), why)
    if not sums.has_predictions:
        why = "no models of the reward and of the policy's value were learned (estimate=false)"
        skipped |= dict.fromkeys(_NEED_MODELS, why)
        skipped |= {
            name: f"{skipped[name]}; and {why}" if name in skipped else why for name in _NEED_WEIGHTS_AND_MODELS
        }
    if sums.has_ratio and sums.ratio.sum() == 0.0:
        why = "the policy takes none of the logged actions: there is no overlap to estimate from"
        skipped |= dict.fromkeys((*_NEED_WEIGHTS, *_NEED_WEIGHTS_AND_MODELS), why)
    elif sums.has_ratio and sums.weight.sum() == 0.0:
        why = "the policy follows none of the logged trajectories to the end"
        skipped |= dict.fromkeys(("ips", "snips", "clipped_ips"), why)
    return skipped


def warnings_of(sums: Sums, statistics: LogStatistics, skipped: Mapping[str, str]) -> list[str]:
    """Warnings for the user, one line each, the most serious first."""
    found: list[str] = []
    trajectories, rows = int(sums.trajectories.sum()), int(sums.rows.sum())
    found += [
        f"left out: {', '.join(name for name in skipped if skipped[name] == why)}: {why}"
        for why in dict.fromkeys(skipped.values())
    ]
    if not sums.has_ratio and sums.has_predictions and not statistics.no_choices:
        found.append("the intervals of decision_direct and fitted_q do not include how wrong the models may be")
    if sums.has_ratio:
        found += _weight_warnings(sums, statistics)
    if trajectories < FEW:
        found.append(too_few(trajectories))
    unlogged = float(sums.unlogged.sum()) / max(rows, 1)
    if unlogged > _MAX_UNLOGGED:
        found.append(
            f"{unlogged:.0%} of what the policy does are actions that are nowhere in the log; only the models say "
            "anything about these, and they guess"
        )
    if cut := int(sums.cut.sum()):
        found.append(
            f"{cut} of {trajectories} trajectories are cut off before their end: all estimates but fitted_q, and magic "
            "in part, count only the rewards that were logged"
        )
    if statistics.gaps:
        found.append(
            f"rows are missing from the log after {statistics.gaps} rows; their rewards and weights are not counted"
        )
    if statistics.seen:
        found.append(
            "the policy learned from these very rows, so the estimates are optimistic; give other rows with --data"
        )
    return found


def _weight_warnings(sums: Sums, statistics: LogStatistics) -> list[str]:
    if sums.ratio.sum() == 0.0:
        return []
    found: list[str] = []
    rows, trajectories = float(sums.rows.sum()), float(sums.trajectories.sum())
    effective = _effective(sums.weight, sums.weight_squared)
    if is_small(effective) and trajectories >= FEW:
        found.append(
            f"effective sample size {effective:.1f} of {trajectories:.0f} trajectories: estimates that weight whole "
            "trajectories, and their intervals, are unreliable"
        )
    effective = _effective(sums.ratio, sums.ratio_squared)
    if is_small(effective) and rows >= FEW:
        found.append(
            f"effective sample size {effective:.1f} of {rows:.0f} rows: the policy hardly ever takes what the log took"
        )
    if mean_ratio_is_off(sums):
        found.append(
            f"weights of rows are {_mean_ratio(sums)[0]:.3g} on average, where 1 is expected: "
            f"{why_mean_ratio_is_off(statistics)}"
        )
    if statistics.certain == statistics.rows:
        found.append(
            "every propensity is 1: the logged policy never tried anything else, so weights tell nothing of it"
        )
    return found


def is_small(effective: float) -> bool:
    """Whether an effective sample size is below `FEW`, as shown: that of 20 equal weights is 20, up to rounding."""
    return round(effective, 1) < FEW


def too_few(trajectories: int) -> str:
    """That a log has fewer than `FEW` trajectories."""
    number = "1 trajectory" if trajectories == 1 else f"{trajectories} trajectories"
    return f"the log has {number}, and intervals from fewer than {FEW} are unreliable"


def mean_ratio_is_off(sums: Sums) -> bool:
    """Whether the mean ratio of rows differs from 1 by more than its sampling error explains."""
    mean, error = _mean_ratio(sums)
    return abs(mean - 1) > max(_MAX_MEAN_ERROR, 3 * error)


def why_mean_ratio_is_off(statistics: LogStatistics) -> str:
    """The two reasons for it, in words."""
    logged = "densities" if statistics.continuous else "propensities"
    return f"the log hardly ever takes what the policy takes, or its {logged} are wrong"


def _mean_ratio(sums: Sums) -> tuple[float, float]:
    """The mean ratio of rows, and its standard error over groups of trajectories."""
    rows = float(sums.rows.sum())
    mean = float(sums.ratio.sum()) / rows
    residual = sums.ratio - mean * sums.rows
    scale = scale_of(residual)
    return mean, float(np.sqrt(((residual / scale) ** 2).sum())) * scale / rows


def _effective(weight: Floats, squared: Floats) -> float:
    scale = scale_of(weight)  # the sum of thousands of the largest weights has no finite square
    total = float((squared / scale / scale).sum())
    return float((weight / scale).sum()) ** 2 / total if total > 0 else 0.0
