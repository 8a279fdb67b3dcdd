"""All estimates of a policy from sums over groups of trajectories, with intervals, reasons and warnings.

Shapes: B sets of draws, G groups, C columns (the reward, then each metric).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.estimators.bootstrap import draws, interval
from lockstep.estimators.diagnose import Facts, effective_sizes, reasons, warnings_about
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
from lockstep.estimators.trajectories import Floats, Sums
from lockstep.estimators.verdict import verdict

CONFIDENCE = 0.95
"""Of every interval."""
RESAMPLES = 1000
"""Bootstrap samples, where that takes no longer than seconds."""
_LEAST_RESAMPLES, _WORK = 200, 1e11
"""With trajectories of 100 000 steps there are fewer, so that the products of draws and sums stay below `_WORK`."""
MOST_GROUPS = 1000
"""Of trajectories: they are drawn one by one up to here, and in groups of equal size beyond."""


@dataclass(frozen=True, slots=True)
class _Drawn:
    """An estimate of every column: itself [C], and of bootstrap samples [B, C]."""

    point: Floats
    resampled: Floats


def group_sizes(trajectories: int, total: int) -> list[int]:
    """How many consecutive trajectories make up each group, where there are `total` on all machines together."""
    size = max(1, -(-total // MOST_GROUPS))
    return [min(size, trajectories - first) for first in range(0, trajectories, size)]


def largest_weights(trajectories: int, rows: int) -> tuple[float, float]:
    """Where ratios of rows, and weights of trajectories, are clipped: at the root of their number (Ionides, 2008).

    The bias then vanishes as the log grows, and no single row weighs more than the root.
    """
    return math.sqrt(rows), math.sqrt(trajectories)


def estimates(sums: Sums, columns: Sequence[str], facts: Facts, *, seed: int = 0) -> dict[str, Any]:
    """What the policy would earn, by every estimator that the log supports, as plain values.

    Args:
        sums: over groups of trajectories.
        columns: names of the C columns, `reward` first.
        facts: what the sums do not tell.
        seed: of the bootstrap.

    Returns:
        `estimates`: by column and estimator `value`, `low`, `high` (95%; None: without end), `std_error`, and the first
        three `normalized`: 1 + (value - logged) / |logged|, or None where the interval of the logged value holds 0;
        `widened`: by column and estimator, the other one whose interval its own was made to span;
        `logged`: by column, the two values that they compare with; `left_out`: reasons, by estimator;
        `effective_sample_size`; `warnings`; `verdict`: what to believe; and counts.
    """
    groups = len(sums.trajectories)
    work = groups * float(sums.steps.max()) * (1 + 3 * len(columns))
    resamples = int(np.clip(_WORK / work, _LEAST_RESAMPLES, RESAMPLES))
    drawn = _all_estimates(sums, draws(groups, resamples, seed))
    left = reasons(sums, facts)
    found: dict[str, dict[str, Any]] = {}
    base: dict[str, dict[str, Any]] = {}
    widened: dict[str, dict[str, str]] = {}
    for c, column in enumerate(columns):
        base[column] = {name: _described(_of(drawn[name], c), groups) for name in ("decision_logged", "logged")}
        found[column], widened[column] = {}, {}
        for name in (*DECISION, *TRAJECTORY):
            if name in drawn and name not in left:
                other = TRUSTS_MODEL.get(name)
                corrected = _of(drawn[other], c) if other in drawn and other not in left else None
                described = _described(_of(drawn[name], c), groups, corrected)
                compared = base[column]["decision_logged" if name in DECISION else "logged"]
                found[column][name] = described | _normalized(described, compared)
                if other and corrected and described != _described(_of(drawn[name], c), groups):
                    widened[column][name] = other
        _state_bias(found[column], sums)
    result: dict[str, Any] = {
        "num_trajectories": int(sums.trajectories.sum()),
        "num_rows": int(sums.rows.sum()),
        "confidence": CONFIDENCE,
        "resamples": resamples,
        "logged": base,
        "estimates": found,
        "widened": widened,
        "left_out": left,
        "effective_sample_size": effective_sizes(sums),
    }
    return result | {"warnings": warnings_about(sums, facts, left), "verdict": verdict(result, sums, facts)}


def _all_estimates(sums: Sums, resampling: Floats) -> dict[str, _Drawn]:
    """Every estimate, of all groups and of each bootstrap sample."""
    kinds = np.ones((1, len(sums.trajectories))), resampling
    described = [logged(sums, d) | decision_estimates(sums, d) | trajectory_estimates(sums, d) for d in kinds]
    if sums.has_ratio:
        steps = steps_to_blend(int(sums.steps.max()))
        rewards, returns = zip(*(j_step_returns(sums, d, steps) for d in kinds), strict=True)
        for one, reward in zip(described, rewards, strict=True):
            one["per_decision_snips"] = reward
        if sums.has_predictions:
            x = np.stack([blend(returns[0][0, :, c], returns[1][:, :, c]) for c in range(sums.reward.shape[1])], 1)
            for one, g in zip(described, returns, strict=True):
                one["weighted_sequential_dr"], one["magic"] = g[:, -1], np.einsum("bjc,jc->bc", g, x)
    return {name: _Drawn(described[0][name][0], described[1][name]) for name in described[0]}


def _of(one: _Drawn, column: int) -> _Drawn:
    return _Drawn(one.point[column], one.resampled[:, column])


def _described(one: _Drawn, groups: int, corrected: _Drawn | None = None) -> dict[str, float | None]:
    """An estimate of one column as plain values.

    Drawing trajectories does not tell how wrong a model is, which is the same in all draws. An estimate that trusts
    one therefore has an interval that also spans the one of the estimate that corrects the model.
    """
    low, high = interval(one.resampled, groups, CONFIDENCE)
    error = _spread(one)
    if corrected is not None:
        ends = interval(corrected.resampled, groups, CONFIDENCE)
        low, high, error = min(low, ends[0]), max(high, ends[1]), max(error, _spread(corrected))
    described = {"value": float(one.point), "low": low, "high": high, "std_error": error}
    return {name: value if math.isfinite(value) else None for name, value in described.items()}


def _normalized(described: Mapping[str, float | None], logged: Mapping[str, float | None]) -> dict[str, float | None]:
    """1 + (x - logged) / |logged|: more is better whatever the sign; None where the logged value may well be 0."""
    base, low, high = logged["value"], logged["low"], logged["high"]
    if base is None or low is None or high is None or low <= 0 <= high:
        return {"normalized": None, "normalized_low": None, "normalized_high": None}
    return {
        f"normalized{end}": None if x is None else 1.0 + (x - base) / abs(base)
        for end, x in (("", described["value"]), ("_low", described["low"]), ("_high", described["high"]))
    }


def _spread(one: _Drawn) -> float:
    """The bootstrap's standard error."""
    counted = one.resampled[~np.isnan(one.resampled)]
    return float(counted.std()) if len(counted) else math.inf


def _state_bias(found: dict[str, Any], sums: Sums) -> None:
    """Say of clipped estimates what clipping did to them, and how much of the weight, 1 on average, is gone."""
    weights = {
        "decision_clipped_ips": (sums.clipped_ratio, sums.rows),
        "clipped_ips": (sums.clipped_weight, sums.trajectories),
    }
    for name, (weight, number) in weights.items():
        if name in found:
            found[name]["bias"] = found[name]["value"] - found[name.replace("clipped_", "")]["value"]
            found[name]["missing_weight"] = max(0.0, 1.0 - float(weight.sum() / number.sum()))
