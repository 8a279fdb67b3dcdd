"""Group runs whose settings differ only in the seed, and aggregate their curves and scores."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lockstep.cli.report.page.load import Curve, PageRun
from lockstep.cli.report.table import NOT_COMPARED, differing
from lockstep.cli.terminal import shown_setting
from lockstep.config.settings import short_names
from lockstep.record.run_status import COMPLETE
from lockstep.record.score_statistics import Floats, ScoreSummary, bootstrap_interval, interquartile_mean, summarize

Axis = Literal["steps", "seconds"]

_GRID = 120
"""Points of a group's curve."""
_CURVE_RESAMPLES = 400
"""Bootstrap samples of a curve's band, at each point; scores in tables have more."""
_ALWAYS_NAMED = ("task", "data", "algo", "ranks")
"""Settings that are in every label if they differ."""
_BY_VALUE = ("task", "data", "algo")
"""Settings whose value needs no name beside it."""
_BOOKKEEPING = (
    "log_every",
    "evaluate_every",
    "evaluate_episodes",
    "evaluate_video",
    "checkpoint_every",
    "num_checkpoints",
    "check_every",
    "timeout_s",
    "startup_timeout_s",
)
"""Settings without influence on what is learned: in a label only if groups differ in nothing else."""
_LABEL_LETTERS = 40
"""Longer labels lose settings, since a legend has one line for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs of the same settings and number of ranks with different seeds."""

    label: str
    """Settings in which the groups differ, such as `ppo, learning_rate=0.001, ranks=2`."""
    runs: Sequence[PageRun]
    """Without copies: a seed that ended with the same parameters again is no further sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The interquartile mean of a group's curves and its bootstrap interval; NaN where too few runs have data."""

    x: Floats
    iqm: Floats
    low: Floats | None
    """None for a single run."""
    high: Floats | None


def group_runs(runs: Sequence[PageRun]) -> list[Group]:
    """The groups, in order of their first runs; copies of a run are left out."""
    members: dict[str, list[PageRun]] = {}
    copied = {id(run) for run in copies(runs)}
    for run in runs:
        if id(run) not in copied:
            members.setdefault(_compared(run), []).append(run)
    labels = _labels([group[0] for group in members.values()], differing([run.found for run in runs]))
    return [Group(label=label, runs=group) for label, group in zip(labels, members.values(), strict=True)]


def copies(runs: Sequence[PageRun]) -> list[PageRun]:
    """The runs that repeat one before them: the same settings, seed and number of ranks, and the same parameters."""
    found, seen = list[PageRun](), set[tuple[str, ...]]()
    for run in runs:
        if not (fingerprint := run.summary.get("params_fingerprint")):
            continue
        key = _compared(run), str(run.found.settings.get("seed")), str(fingerprint)
        if key in seen:
            found.append(run)
        seen.add(key)
    return found


def _compared(run: PageRun) -> str:
    """What the runs of a group have in common: the settings but for the seed, and the number of ranks."""
    kept = {name: value for name, value in run.found.settings.items() if name not in NOT_COMPARED}
    return json.dumps([kept, run.time.num_ranks], sort_keys=True, default=str)


def final_scores(group: Group, source: str) -> list[float]:
    """The last value of each run that has a curve of this source."""
    return [float(run.curves[source].values[-1]) for run in group.runs if source in run.curves]


def score_summary(group: Group, source: str) -> ScoreSummary | None:
    """The aggregated final scores; None if no run has one."""
    scores = final_scores(group, source)
    return summarize(scores) if scores else None


def band(group: Group, source: str, axis: Axis) -> Band | None:
    """Aggregate the group's curves on a common grid.

    A run that finished or solved its task keeps its last value to the right of its end, since its policy stays as it
    is. Any other run counts only as far as it got. The band ends where fewer than half of the runs have data.
    """
    curves = [(run.curves[source], run.found.status in COMPLETE) for run in group.runs if source in run.curves]
    curves = [(curve, complete) for curve, complete in curves if np.isfinite(_x(curve, axis)).all()]
    if not curves:
        return None
    starts, ends = zip(*((_x(curve, axis)[0], _x(curve, axis)[-1]) for curve, _ in curves), strict=True)
    points = _GRID if max(ends) > min(starts) else 1
    grid: Floats = np.linspace(float(min(starts)), float(max(ends)), points, dtype=np.float64)
    values = np.array(
        [
            np.interp(grid, _x(c, axis), c.values, left=np.nan, right=c.values[-1] if complete else np.nan)
            for c, complete in curves
        ]
    )
    known = ~np.isnan(values)
    iqm = np.full(len(grid), np.nan)
    low, high = iqm.copy(), iqm.copy()
    for pattern in np.unique(known, axis=1).T:  # columns in which the same runs have data
        if 2 * pattern.sum() < len(curves):
            continue
        columns = (known == pattern[:, None]).all(axis=0)
        part = values[np.ix_(pattern, columns)]
        iqm[columns] = interquartile_mean(part)
        if len(part) == 1:
            continue  # a single run has no interval
        low[columns], high[columns] = bootstrap_interval([part], resamples=_CURVE_RESAMPLES)
    several = len(curves) > 1
    return Band(x=grid, iqm=iqm, low=low if several else None, high=high if several else None)


def _x(curve: Curve, axis: Axis) -> Floats:
    return curve.steps if axis == "steps" else curve.seconds


def _labels(firsts: Sequence[PageRun], differ: Sequence[str]) -> list[str]:
    """A label for each group: settings in which the groups differ, as few as a legend has room for.

    Args:
        firsts: one run of each group.
        differ: names of the settings that differ between groups.
    """
    short = dict(zip(differ, short_names(differ), strict=True))
    settings = [
        {short[name]: shown_setting(run.found.settings[name]) for name in differ if _is_named(run, name)}
        | ({} if run.time.num_ranks is None else {"ranks": str(run.time.num_ranks)})
        for run in firsts
    ]
    defaults = [str(run.found.settings.get("algo") or run.name) for run in firsts]
    names = list(dict.fromkeys(name for group in settings for name in group))
    labels = _written(settings, names, defaults)
    optional = [name for name in names if name not in (*_ALWAYS_NAMED, *_BOOKKEEPING)]
    for name in [*(name for name in names if name in _BOOKKEEPING), *reversed(optional)]:
        if name not in _BOOKKEEPING and max(map(len, labels)) <= _LABEL_LETTERS:
            break
        fewer = [other for other in names if other != name]
        shorter = _written(settings, fewer, defaults)
        if len(set(shorter)) == len(set(labels)):  # groups that this setting alone tells apart keep it
            names, labels = fewer, shorter
    return labels


def _is_named(run: PageRun, name: str) -> bool:
    """Whether a label may name a setting of a run: `null` alone, as the task of logged data, would say nothing."""
    return name in run.found.settings and (run.found.settings[name] is not None or name not in _BY_VALUE)


def _written(groups: Sequence[Mapping[str, str]], names: Sequence[str], defaults: Sequence[str]) -> list[str]:
    """Labels of the given settings: those in which a group differs from most groups, or all if there is none."""
    settings = [{name: group[name] for name in names if name in group} for group in groups]
    common: dict[str, str | None] = {}
    for name in names:
        (value, number), *_ = Counter(group.get(name) for group in settings).most_common()
        if number == len(groups) or (2 * number > len(groups) and name not in _ALWAYS_NAMED):
            common[name] = value
    only = {name for name, value in common.items() if all(group.get(name) == value for group in settings)}
    labels: list[str] = []
    for group, default in zip(settings, defaults, strict=True):
        parts = [name for name, value in group.items() if name not in common or common[name] != value]
        parts = parts or [name for name in group if name not in only]
        labels.append(
            ", ".join(group[name] if name in _BY_VALUE else f"{name}={group[name]}" for name in parts) or default
        )
    return labels
