"""All estimates of a policy from sums over groups of trajectories, with intervals, reasons and warnings.

Shapes: B sets of draws, G groups, C columns (the reward, then each metric).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.estimators.bootstrap import draws, interval
from lockstep.estimators.diagnose import LogStatistics, effective_sizes, reasons, warnings_of
from lockstep.estimators.importance import (
    DECISION,
    TRAJECTORY,
    TRUSTS_MODEL,
    decision_estimates,
    j_step_returns,
    logged,
    trajectory_estimates,
)
from lockstep.estimators.magic import blend, steps_to_blend
from lockstep.estimators.recommendation import recommendation
from lockstep.estimators.trajectories import Floats, Sums, scale_of

CONFIDENCE = 0.95
"""The confidence level of every interval."""
RESAMPLES = 1000
"""The number of bootstrap samples, unless it would take more than seconds."""
_LEAST_RESAMPLES, _WORK = 200, 1e11
"""With trajectories of 100 000 steps there are fewer, so that the products of draws and sums stay below `_WORK`."""
_ROUNDING = 1e-9
"""Returns that differ relatively by less are equal: sums of rewards are rounded."""
MOST_GROUPS = 1000
"""Up to this number trajectories are drawn one by one, beyond it in groups of equal size."""


@dataclass(frozen=True, slots=True)
class _Bootstrapped:
    """An estimate of every column [C], and the same of bootstrap samples [B, C]."""

    point: Floats
    resampled: Floats


def group_sizes(trajectories: int, total: int) -> list[int]:
    """The number of consecutive trajectories in each group; `total` is their number on all nodes together."""
    size = max(1, -(-total // MOST_GROUPS))
    return [min(size, trajectories - first) for first in range(0, trajectories, size)]


def clipping_thresholds(rows: int, trajectories: int) -> tuple[float, float]:
    """The clipping thresholds of row ratios and trajectory weights: the roots of their numbers (Ionides, 2008).

    The bias vanishes as the log grows, and no single row weighs more than the root.
    """
    return math.sqrt(rows), math.sqrt(trajectories)


def estimates(sums: Sums, columns: Sequence[str], statistics: LogStatistics, *, seed: int = 0) -> dict[str, Any]:
    """The return of the policy by every estimator that the log supports, as plain values; `columns` are `reward` first.

    Returns:
        `estimates`: by column and estimator `value`, the interval `low` to `high` (95%; None: unbounded), `std_error`;
        and `normalized`, `normalized_low`, `normalized_high`, the first three as 1 + (x - logged) / |logged|, None
        where the interval of `logged` contains 0;
        `widened`: by column and estimator, the estimator whose interval was merged into this one's;
        `logged`: by column, the two values that they compare with, and whether all rows, or trajectories, have the
        same (`constant`); `left_out`: reasons, by estimator;
        `effective_sample_size`; `warnings`; `verdict`: the result of `recommendation`; and counts.
    """
    groups = len(sums.trajectories)
    work = groups * float(sums.steps.max()) * (1 + 3 * len(columns))
    resamples = int(np.clip(_WORK / work, _LEAST_RESAMPLES, RESAMPLES))
    drawn = _all_estimates(sums, draws(groups, resamples, seed))
    left_out = reasons(sums, statistics)
    found: dict[str, dict[str, Any]] = {}
    base: dict[str, dict[str, Any]] = {}
    widened: dict[str, dict[str, str]] = {}
    for c, column in enumerate(columns):
        base[column] = {
            name: _summary(_column(drawn[name], c), groups) | {"constant": _constant(ranges[:, c])}
            for name, ranges in (("decision_logged", sums.reward_range), ("logged", sums.returns_range))
        }
        found[column], widened[column] = {}, {}
        for name in (*DECISION, *TRAJECTORY):
            if name in drawn and name not in left_out:
                other = TRUSTS_MODEL.get(name)
                corrected = _column(drawn[other], c) if other in drawn and other not in left_out else None
                summary = _summary(_column(drawn[name], c), groups, corrected)
                compared = base[column]["decision_logged" if name in DECISION else "logged"]
                found[column][name] = summary | _normalized(summary, compared)
                if other and corrected and summary != _summary(_column(drawn[name], c), groups):
                    widened[column][name] = other
        _add_clipping_bias(found[column], sums)
    result: dict[str, Any] = {
        "num_trajectories": int(sums.trajectories.sum()),
        "num_rows": int(sums.rows.sum()),
        "confidence": CONFIDENCE,
        "resamples": resamples,
        "logged": base,
        "estimates": found,
        "widened": widened,
        "left_out": left_out,
        "effective_sample_size": effective_sizes(sums),
    }
    return result | {
        "warnings": warnings_of(sums, statistics, left_out),
        "verdict": recommendation(result, sums, statistics),
    }


def _all_estimates(sums: Sums, resampling: Floats) -> dict[str, _Bootstrapped]:
    kinds = np.ones((1, len(sums.trajectories))), resampling
    results = [logged(sums, d) | decision_estimates(sums, d) | trajectory_estimates(sums, d) for d in kinds]
    if sums.has_ratio:
        steps = steps_to_blend(int(sums.steps.max()))
        rewards, returns = zip(*(j_step_returns(sums, d, steps) for d in kinds), strict=True)
        for one, reward in zip(results, rewards, strict=True):
            one["per_decision_snips"] = reward
        if sums.has_predictions:
            x = np.stack([blend(returns[0][0, :, c], returns[1][:, :, c]) for c in range(sums.reward.shape[1])], 1)
            for one, g in zip(results, returns, strict=True):
                one["weighted_sequential_dr"], one["magic"] = g[:, -1], np.einsum("bjc,jc->bc", g, x)
    return {name: _Bootstrapped(results[0][name][0], results[1][name]) for name in results[0]}


def _column(one: _Bootstrapped, column: int) -> _Bootstrapped:
    return _Bootstrapped(one.point[column], one.resampled[:, column])


def _constant(ranges: Floats) -> bool:
    """Whether all groups, whose smallest and largest values [G, 2] are given, have one value, up to rounding."""
    low, high = float(ranges[:, 0].min()), float(ranges[:, 1].max())
    return high - low <= _ROUNDING * max(abs(low), abs(high))


def _summary(one: _Bootstrapped, groups: int, corrected: _Bootstrapped | None = None) -> dict[str, float | None]:
    """An estimate of one column as plain values.

    The bootstrap does not measure the bias of a model, which is the same in all draws. The interval of an estimate that
    relies on a model therefore also spans that of `corrected`, the estimate that corrects the model.
    """
    low, high = interval(one.resampled, groups, CONFIDENCE)
    error = _standard_error(one)
    if corrected is not None:
        ends = interval(corrected.resampled, groups, CONFIDENCE)
        low, high, error = min(low, ends[0]), max(high, ends[1]), max(error, _standard_error(corrected))
    summary = {"value": float(one.point), "low": low, "high": high, "std_error": error}
    return {name: value if math.isfinite(value) else None for name, value in summary.items()}


def _normalized(summary: Mapping[str, float | None], logged: Mapping[str, float | None]) -> dict[str, float | None]:
    """1 + (x - logged) / |logged|: more is better, whatever the sign; None if the interval of `logged` holds 0."""
    base, low, high = logged["value"], logged["low"], logged["high"]
    if base is None or low is None or high is None or low <= 0 <= high:
        return {"normalized": None, "normalized_low": None, "normalized_high": None}
    return {
        f"normalized{end}": None if x is None else 1.0 + (x - base) / abs(base)
        for end, x in (("", summary["value"]), ("_low", summary["low"]), ("_high", summary["high"]))
    }


def _standard_error(one: _Bootstrapped) -> float:
    counted = one.resampled[~np.isnan(one.resampled)]
    scale = scale_of(counted)
    return float((counted / scale).std()) * scale if len(counted) else math.inf


def _add_clipping_bias(found: dict[str, Any], sums: Sums) -> None:
    """Add to clipped estimates the change by clipping, and the part of the weights (1 on average) that is lost."""
    weights = {
        "decision_clipped_ips": (sums.clipped_ratio, sums.rows),
        "clipped_ips": (sums.clipped_weight, sums.trajectories),
    }
    for name, (weight, number) in weights.items():
        if name in found:
            clipped, plain = found[name]["value"], found[name.replace("clipped_", "")]["value"]
            found[name]["bias"] = None if clipped is None or plain is None else clipped - plain
            found[name]["missing_weight"] = max(0.0, 1.0 - float(weight.sum() / number.sum()))
