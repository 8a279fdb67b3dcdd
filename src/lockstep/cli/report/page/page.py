"""Fill in the page: one HTML file without requests, whose content needs no script."""

import base64
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lockstep.cli.report.page.chart import (
    NUM_STYLES,
    Interval,
    Line,
    interval_chart,
    line_chart,
)
from lockstep.cli.report.page.groups import (
    Axis,
    Group,
    band,
    copies,
    final_scores,
    group_runs,
    score_summary,
)
from lockstep.cli.report.page.load import PageRun, read_page_runs
from lockstep.cli.report.page.run_tables import machines, run_row, settings_section, sync_row, videos_of
from lockstep.cli.report.page.scaling_section import is_measurement, scaling_section
from lockstep.cli.report.page.time_section import time_section
from lockstep.cli.report.runs import printable
from lockstep.cli.terminal import tally
from lockstep.errors import ConfigError
from lockstep.record.score_statistics import Floats, ScoreSummary, performance_profile
from lockstep.record.summary import versions
from lockstep.record.text import compact, counted, significant
from lockstep.system.files import write_atomically

_SOURCES = {
    "evaluation": "Evaluation return",
    "training": "Training return (mean of the last 100 episodes or more)",
    "estimate": "Estimated return from the log",
}
_FAINT_POINTS = 4000
"""Points of the faint lines of one chart: with more runs, each has fewer."""
_FEWEST_FAINT_POINTS = 20
_NO_SCALES: Mapping[Path, Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranked:
    """A group with its final scores, and its colour if it is one of the best."""

    group: Group
    summary: ScoreSummary | None
    style: int | None

    @property
    def label(self) -> str:
        """The label of the group with its number of runs."""
        count = len(self.group.runs)
        return f"{self.group.label} ({count} runs)" if count > 1 else self.group.label


def write_page(paths: Sequence[Path], file: Path, scales: Mapping[Path, Mapping[str, Any]] = _NO_SCALES) -> None:
    """Write the page of the runs in `paths` to `file`.

    Args:
        paths: run directories.
        file: the page.
        scales: contents of the `scale.json` of `lockstep scale`, by directory.

    Raises:
        ConfigError: the file cannot be written.
    """
    page = render(read_page_runs(paths), file.absolute().parent, scales)
    try:
        write_atomically(file, printable(page))
    except OSError as error:
        raise ConfigError(f"--html {file} cannot be written ({error.strerror}); choose another file") from None


def render(runs: Sequence[PageRun], directory: Path, scales: Mapping[Path, Mapping[str, Any]] = _NO_SCALES) -> str:
    """The page as text; links to run directories are relative to `directory`."""
    folder = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script, style = ((folder / name).read_text(encoding="utf-8") for name in ("page.js", "style.css"))
    tasks = list(dict.fromkeys(run.subject for run in runs))
    trained = [run for run in runs if not is_measurement(run.found.path, scales)]
    subjects = list(dict.fromkeys(run.subject for run in trained))
    groups = group_runs(runs)
    return environment.get_template("page.html.j2").render(
        title=f"{tasks[0] if len(tasks) == 1 else counted(len(tasks), 'task')}: {counted(len(runs), 'run')}",
        summary=_summary(runs, groups),
        made=time.strftime("%Y-%m-%d %H:%M %Z"),
        lockstep=versions()["lockstep"],
        script=Markup(script),  # our own files
        style=Markup(style),
        script_hash=_hash(script),
        style_hash=_hash(style),
        subjects=[
            _subject_section(name, [run for run in trained if run.subject == name], number)
            for number, name in enumerate(subjects)
        ],
        scales=[scaling_section(one) for one in scales.values()],
        scaling_first=bool(scales) and all(run.found.path.parent in scales for run in runs),
        time=time_section(groups),
        settings=settings_section(runs, groups),
        runs=[run_row(run, directory) for run in runs],
        sync=[sync_row(run, runs) for run in runs],
        machines=machines(runs),
        videos=videos_of(runs, directory),
    )


def _summary(runs: Sequence[PageRun], groups: Sequence[Group]) -> str:
    repeated = [run.name for run in copies(runs)]
    several = len(groups) < len(runs) - len(repeated)
    parts = [counted(len(groups), "group") + " of runs that differ only in the seed"] if several else []
    parts += [f"{', '.join(repeated)} not counted: the same run again"] if repeated else []
    return ", ".join([*parts, tally(run.found.status for run in runs)])


def _subject_section(name: str, runs: Sequence[PageRun], number: int) -> dict[str, Any]:
    """Curves, scores and profile of the runs of one task."""
    source = _score_source(runs)
    ranked = _ranked(group_runs(runs), source)
    charts: list[Markup | None] = []
    for curve_source in _SOURCES:
        if any(len(run.curves[curve_source].steps) > 1 for run in runs if curve_source in run.curves):
            charts += [_curve_chart(ranked, curve_source, axis) for axis in ("steps", "seconds")]
    scores, profile = _score_chart(ranked, source), _profile_chart(ranked, source)
    return {
        "name": name,
        "id": f"task{number}",
        "curves": [chart for chart in charts if chart],
        "grey": sum(entry.style is None for entry in ranked),
        "source": _SOURCES.get(source or "", ""),
        "finding": _finding(ranked),
        "scores": [chart for chart in (scores, profile) if chart],
        "rows": [_score_row(entry) for entry in ranked if entry.summary],
    }


def _score_source(runs: Sequence[PageRun]) -> str | None:
    """The source of final scores: the first that most runs have."""
    counts = {source: sum(source in run.curves for run in runs) for source in _SOURCES}
    source = max(counts, key=lambda name: counts[name])
    return source if counts[source] else None


def _ranked(groups: Sequence[Group], source: str | None) -> list[_Ranked]:
    """The groups from the best final score to the worst, the first ones with a colour."""
    scored = [(group, score_summary(group, source) if source else None) for group in groups]
    scored.sort(key=lambda pair: -np.inf if pair[1] is None else pair[1].iqm, reverse=True)
    return [
        _Ranked(group=group, summary=summary, style=i if i < NUM_STYLES else None)
        for i, (group, summary) in enumerate(scored)
    ]


def _curve_chart(ranked: Sequence[_Ranked], source: str, axis: Axis) -> Markup | None:
    count = sum(source in run.curves for entry in ranked for run in entry.group.runs)
    points = max(_FAINT_POINTS // max(count, 1), _FEWEST_FAINT_POINTS)
    lines: list[Line] = []
    unit, seconds = 1.0, "seconds of training"
    if axis == "seconds":
        longest = [curve.seconds[-1] for e in ranked for run in e.group.runs if (curve := run.curves.get(source))]
        unit, seconds = _time_unit(float(np.nanmax([0.0, *longest])))
    for entry in ranked:
        found = band(entry.group, source, axis)
        if found is None:
            continue
        behind = [_thin_line(run, source, axis, points, unit) for run in entry.group.runs if source in run.curves]
        lines.append(
            Line(
                label=entry.label,
                x=found.x / unit,
                y=found.iqm,
                low=found.low,
                high=found.high,
                style=entry.style,
                behind=behind if len(behind) > 1 and entry.style is not None else (),
            )
        )
    if not lines:
        return None
    ends = [f"{line.label} ends at {_last(line.y)}" for line in lines if line.style is not None]
    x_label = "steps" if axis == "steps" else seconds
    title = f"{_SOURCES[source].partition(' (')[0]} by {'steps' if axis == 'steps' else 'time'}"
    description = f"Interquartile mean over seeds with a 95% bootstrap band, by {x_label}. {'; '.join(ends)}."
    return Markup(line_chart(title, description, (x_label, ""), lines))  # escaped by the serializer


def _thin_line(run: PageRun, source: str, axis: Axis, points: int, unit: float) -> tuple[np.ndarray, np.ndarray]:
    curve = run.curves[source]
    kept = np.unique(np.linspace(0, len(curve.steps) - 1, min(points, len(curve.steps))).round().astype(int))
    return (curve.steps if axis == "steps" else curve.seconds)[kept] / unit, curve.values[kept]


def _score_chart(ranked: Sequence[_Ranked], source: str | None) -> Markup | None:
    rows: list[Interval] = []
    for entry in ranked[: 2 * NUM_STYLES]:
        if entry.summary is not None and source is not None:
            low, high = entry.summary.interval or (entry.summary.iqm, entry.summary.iqm)
            dots = final_scores(entry.group, source)
            rows.append(
                Interval(
                    label=entry.label,
                    number=significant(entry.summary.iqm),
                    value=entry.summary.iqm,
                    low=low,
                    high=high,
                    dots=dots,
                    style=entry.style,
                )
            )
    if not rows or source is None:
        return None
    description = "; ".join(f"{entry.label}: {_spoken(entry.summary)}" for entry in ranked if entry.summary) + "."
    return Markup(interval_chart("Final scores", description, _SOURCES[source].lower(), rows))


def _profile_chart(ranked: Sequence[_Ranked], source: str | None) -> Markup | None:
    """The fraction of runs above each score; needs a group of several runs."""
    scores = {i: final_scores(entry.group, source) for i, entry in enumerate(ranked)} if source else {}
    several = {i: values for i, values in scores.items() if len(values) > 1}
    if not several:
        return None
    every = np.concatenate([np.array(values) for values in several.values()])
    spread = max(float(every.max() - every.min()), 0.1 * float(np.abs(every).max())) or 1.0
    low, high = float(every.min()) - 0.05 * spread, float(every.max()) + 0.05 * spread
    limits: Floats = np.linspace(low, high, 200, dtype=np.float64)
    lines = [
        Line(label=ranked[i].label, x=limits, y=100 * performance_profile(values, limits), style=ranked[i].style)
        for i, values in several.items()
    ]
    description = "For each score, the percentage of runs of a group whose final score is above it."
    axes = ("score", "% of runs above")
    return Markup(line_chart("Performance profile", description, axes, lines))


def _finding(ranked: Sequence[_Ranked]) -> str | None:
    """One sentence that compares the two best groups."""
    scored = [(entry, entry.summary) for entry in ranked if entry.summary is not None]
    if len(scored) < 2:
        return None
    (first, best), (second, next_best) = scored[:2]
    sentence = f"Best: {first.label} with {_spoken(best)}. Next: {second.label} with {_spoken(next_best)}."
    if best.interval is None or next_best.interval is None:
        return f"{sentence} A single run has no interval: add seeds before preferring one."
    apart = best.interval[0] > next_best.interval[1]
    return f"{sentence} The intervals {'do not overlap' if apart else 'overlap: add seeds before preferring one'}."


def _score_row(entry: _Ranked) -> dict[str, Any]:
    assert entry.summary is not None
    found = entry.summary
    speeds = [run.found.steps_per_second for run in entry.group.runs if run.found.steps_per_second]
    return {
        "style": entry.style,
        "label": entry.group.label,
        "cells": [
            str(found.count),
            significant(found.iqm),
            "–" if found.interval is None else f"{significant(found.interval[0])} to {significant(found.interval[1])}",
            *(significant(value) for value in (found.median, found.mean, found.minimum, found.maximum)),
            compact(float(np.median(speeds))) if speeds else "–",
        ],
    }


def _spoken(summary: ScoreSummary) -> str:
    value = significant(summary.iqm)
    if summary.interval is None:
        return value
    return f"{value} (95% interval {significant(summary.interval[0])} to {significant(summary.interval[1])})"


def _last(values: np.ndarray) -> str:
    known = values[~np.isnan(values)]
    return significant(float(known[-1])) if len(known) else "no value"


def _time_unit(longest_s: float) -> tuple[float, str]:
    if longest_s > 3 * 3600:
        return 3600.0, "hours of training"
    return (60.0, "minutes of training") if longest_s > 600 else (1.0, "seconds of training")


def _hash(text: str) -> str:
    """The source expression of an inline script or style sheet for the content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
