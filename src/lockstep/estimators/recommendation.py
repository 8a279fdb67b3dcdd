"""The recommended estimate of one decision and of a trajectory, with reasons in sentences."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from lockstep.estimators.diagnose import (
    FEW,
    NO_CHOICES,
    NO_DENSITY,
    LogStatistics,
    is_small,
    mean_ratio_is_off,
    too_few,
    why_mean_ratio_is_off,
)
from lockstep.estimators.importance import DECISION, TRAJECTORY
from lockstep.estimators.trajectories import Sums
from lockstep.record.text import counted

_PREFERRED: Mapping[str, tuple[str, ...]] = {
    "trajectory": ("weighted_sequential_dr", "per_decision_snips", "snips"),
    "decision": ("decision_dr", "decision_snips"),
}
"""The estimators of each level in order of preference, if importance weights are available."""
_NAMES = {"trajectory": TRAJECTORY, "decision": DECISION}
_LOGGED = {"trajectory": "logged", "decision": "decision_logged"}
_MODEL = {"trajectory": "fitted_q", "decision": "decision_direct"}
_UNIT = {"trajectory": "trajectories", "decision": "rows"}
_OF = {"trajectory": "of a trajectory", "decision": "of one decision"}
_MAX_PAIRS = 4
"""The maximum number of disagreeing pairs to list."""


def recommendation(found: Mapping[str, Any], sums: Sums, statistics: LogStatistics) -> dict[str, Any]:
    """The recommended estimate of each level, as plain values, from the results of `estimates` so far.

    Returns:
        `trajectory` and `decision`: the recommended estimator of each, or None; `reasons`: against all of them, by
        level, where there is none; `words`: a list of sentences.
    """
    recommended: dict[str, str | None] = {}
    reasons: dict[str, str] = {}
    sentences: list[str] = []
    for level in _NAMES:
        name = next((name for name in _PREFERRED[level] if name in found["estimates"]["reward"]), None)
        reason = _reason_against(level, name, found, sums, statistics)
        recommended[level] = None if reason else name
        if reason:
            reasons[level] = reason
        sentences.append(_recommended(level, recommended[level], reason, found))
    sentences += [
        line for column in found["estimates"] for level in _NAMES for line in disagreements(level, column, found)
    ]
    sentences += _sample_size(found)
    sentences += _widened(found)
    sentences += _normalized(found)
    return recommended | {"reasons": reasons, "words": sentences}


def short(name: str) -> str:
    """The name of an estimator in tables."""
    return name.removeprefix("decision_")


def with_interval(one: Mapping[str, Any]) -> str:
    """A value and its interval."""
    if one["value"] is None:
        return "not known"
    ends = ("without end" if one[end] is None else f"{one[end]:.4g}" for end in ("low", "high"))
    return f"{one['value']:.4g} [{', '.join(ends)}]"


def compared(one: Mapping[str, Any], logged: Mapping[str, Any]) -> str:
    """An estimate compared with the return of the log."""
    if one["low"] is not None and logged["high"] is not None and one["low"] > logged["high"]:
        return f"more than the {with_interval(logged)} that the log earned"
    if one["high"] is not None and logged["low"] is not None and one["high"] < logged["low"]:
        return f"less than the {with_interval(logged)} that the log earned"
    return f"not clearly different from the {with_interval(logged)} that the log earned"


def _recommended(level: str, name: str | None, reason: str | None, found: Mapping[str, Any]) -> str:
    available, model = found["estimates"]["reward"], _MODEL[level]
    if name is None:
        known = model in available and not found["logged"]["reward"][_LOGGED[level]]["constant"]
        guess = f"; {short(model)} is what the learned models alone say" if known else ""
        return f"{_OF[level]}: use none of the estimates: {reason}{guess}"
    unit = _UNIT[level]
    size = found["effective_sample_size"][unit]
    why = f"effective sample size {size:.0f} of {_number(level, found)} {unit}"
    models = "the models and the log correct each other" if "dr" in name else "no models were learned"
    logged = found["logged"]["reward"][_LOGGED[level]]
    return (
        f"{_OF[level]}: use {short(name)}, {with_interval(available[name])} ({why}; {models}): "
        f"{compared(available[name], logged)}"
    )


def _reason_against(
    level: str, name: str | None, found: Mapping[str, Any], sums: Sums, statistics: LogStatistics
) -> str | None:
    """Why no estimate with importance weights is reliable; None if one is."""
    sizes, logged = found["effective_sample_size"], found["logged"]["reward"][_LOGGED[level]]
    size, number = sizes[_UNIT[level]], _number(level, found)
    if logged["constant"] and number > 1:
        what, one = ("reward", "action") if level == "decision" else ("return", "policy")
        return f"every {what} in the log is {logged['value']:.4g}, so that it cannot tell one {one} from another"
    if statistics.no_choices:
        return NO_CHOICES
    if statistics.no_density:
        return NO_DENSITY
    if sizes["rows"] is None:
        return "the log has no propensities for every row, so that nothing in it can correct the models"
    if name is None or sizes["rows"] == 0:
        return "the policy hardly ever takes what the log took"
    if statistics.certain == statistics.rows and size < number:
        return "every propensity is 1, so that the log tells nothing of other actions"
    if found["num_trajectories"] < FEW:
        return too_few(found["num_trajectories"])
    if is_small(size):
        return (
            f"effective sample size {size:.1f} of {number} {_UNIT[level]}, fewer than {FEW}: the policy differs "
            "too much from the log, or the log is too short"
        )
    if mean_ratio_is_off(sums):
        return f"the weights do not average 1: {why_mean_ratio_is_off(statistics)}"
    return None


def disagreements(level: str, column: str, found: Mapping[str, Any]) -> list[str]:
    """A sentence that names the estimators whose intervals do not overlap, if there are any.

    Where intervals are unreliable, or all that is logged is alike, their distance says nothing.
    """
    if found["num_trajectories"] < FEW or found["logged"][column][_LOGGED[level]]["constant"]:
        return []
    of = found["estimates"][column]
    known = [name for name in _NAMES[level] if name in of and None not in (of[name]["low"], of[name]["high"])]
    pairs = [(a, b) for a, b in combinations(known, 2) if of[a]["high"] < of[b]["low"] or of[b]["high"] < of[a]["low"]]
    if not pairs:
        return []
    named = "; ".join(
        f"{short(a)} {with_interval(of[a])} and {short(b)} {with_interval(of[b])}" for a, b in pairs[:_MAX_PAIRS]
    )
    more = f"; and {counted(len(pairs) - _MAX_PAIRS, 'more pair')}" if len(pairs) > _MAX_PAIRS else ""
    return [
        f"{column} {_OF[level]}: estimators disagree, since their intervals do not meet, so at least one of each pair "
        f"is wrong: {named}{more}"
    ]


def _sample_size(found: Mapping[str, Any]) -> list[str]:
    sizes = found["effective_sample_size"]
    if sizes["rows"] is None:
        return []
    return [
        f"effective sample size {sizes['trajectories']:.0f} of {found['num_trajectories']} trajectories, "
        f"{sizes['rows']:.0f} of {found['num_rows']} rows: the weighted log tells as much as that many on-policy "
        "rows"
    ]


def _widened(found: Mapping[str, Any]) -> list[str]:
    widened: Mapping[str, str] = found["widened"]["reward"]
    if not widened:
        return []
    pairs = ", ".join(
        f"{short(name)} by that of {short(other)} ({_OF['decision' if name in DECISION else 'trajectory']})"
        for name, other in widened.items()
    )
    return [
        f"intervals that were widened: {pairs}. Resampling the log does not show how wrong a model is; the estimator "
        "that corrects the model does"
    ]


def _normalized(found: Mapping[str, Any]) -> list[str]:
    every = [one["normalized"] for column in found["estimates"].values() for one in column.values()]
    if not every:
        return []
    if any(one is not None for one in every):
        return ["normalized compares with what the log earned: 1 is as much, 1.1 is a tenth better, 0.9 a tenth worse"]
    return ["normalized is left out: the interval of what the log earned holds 0, and nothing can be divided by that"]


def _number(level: str, found: Mapping[str, Any]) -> int:
    return found["num_trajectories"] if level == "trajectory" else found["num_rows"]
