"""Fill in the page: one HTML file without requests, whose content needs no script."""

import base64
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lockstep.cli.report.page.chart import (
    NUM_STYLES,
    Interval,
    Line,
    Stack,
    interval_chart,
    line_chart,
    stack_chart,
)
from lockstep.cli.report.page.groups import (
    Axis,
    Group,
    band,
    final_scores,
    group_runs,
    score_summary,
)
from lockstep.cli.report.page.load import PageRun, read_page_run
from lockstep.cli.report.page.scaling_section import scaling_section
from lockstep.cli.report.runs import is_number
from lockstep.cli.report.table import differing
from lockstep.cli.report.time_use import bottleneck, hosts, rank_name, straggler
from lockstep.cli.terminal import shown_setting, tally
from lockstep.config.settings import short_names
from lockstep.distributed.timers import PHASES
from lockstep.errors import ConfigError
from lockstep.record.console import compact, duration, significant
from lockstep.record.score_statistics import Floats, ScoreSummary, performance_profile
from lockstep.record.summary import versions
from lockstep.system.files import write_atomically

_SOURCES = {
    "evaluation": "Evaluation return",
    "training": "Training return (mean of the last 100 episodes)",
    "estimate": "Estimated return from the log",
}
_FAINT_POINTS = 4000
"""Points of the faint lines of one chart: with more runs, each has fewer."""
_FEWEST_FAINT_POINTS = 20
_MAX_RANK_CHARTS = 8
_MAX_RANK_BARS = 32
_MAX_SENTENCES = 12


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


def write_page(paths: Sequence[Path], file: Path, scales: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write the page of the runs in `paths` to `file`.

    Args:
        paths: run directories.
        file: the page.
        scales: contents of the `scale.json` of `lockstep scale`.

    Raises:
        ConfigError: the file cannot be written.
    """
    page = render([read_page_run(path) for path in paths], file.absolute().parent, scales)
    try:
        write_atomically(file, page)
    except OSError as error:
        raise ConfigError(f"--html {file} cannot be written ({error.strerror}); choose another file") from None


def render(runs: Sequence[PageRun], directory: Path, scales: Sequence[Mapping[str, Any]] = ()) -> str:
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
    subjects = list(dict.fromkeys(run.subject for run in runs))
    groups = group_runs(runs)
    return environment.get_template("page.html.j2").render(
        title=f"{subjects[0] if len(subjects) == 1 else _count(len(subjects), 'task')}: {_count(len(runs), 'run')}",
        summary=_summary(runs, groups),
        made=time.strftime("%Y-%m-%d %H:%M %Z"),
        lockstep=versions()["lockstep"],
        script=Markup(script),  # our own files
        style=Markup(style),
        script_hash=_hash(script),
        style_hash=_hash(style),
        subjects=[
            _subject_section(name, [run for run in runs if run.subject == name], number)
            for number, name in enumerate(subjects)
        ],
        scales=[scaling_section(one) for one in scales],
        time=_time_section(groups),
        settings=_settings_section(runs, groups),
        runs=[_run_row(run, directory) for run in runs],
        sync=[_sync_row(run, runs) for run in runs],
        machines=_machines(runs),
        videos=[
            {"run": run.name, "links": [(video.stem, _link(video, directory)) for video in run.videos]}
            for run in runs
            if run.videos
        ],
    )


def _summary(runs: Sequence[PageRun], groups: Sequence[Group]) -> str:
    parts = [_count(len(groups), "group") + " of runs that differ only in the seed"] if len(groups) < len(runs) else []
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
                    number=_scored(entry.summary),
                    value=entry.summary.iqm,
                    low=low,
                    high=high,
                    dots=dots,
                    style=entry.style,
                )
            )
    if not rows or source is None:
        return None
    description = "; ".join(f"{row.label}: {row.number}" for row in rows) + "."
    return Markup(interval_chart("Final scores", description, _SOURCES[source].lower(), rows))


def _profile_chart(ranked: Sequence[_Ranked], source: str | None) -> Markup | None:
    """The fraction of runs above each score; needs a group of several runs."""
    scores = {i: final_scores(entry.group, source) for i, entry in enumerate(ranked)} if source else {}
    several = {i: values for i, values in scores.items() if len(values) > 1}
    if not several:
        return None
    every = np.concatenate([np.array(values) for values in several.values()])
    spread = float(every.max() - every.min()) or 1.0
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
    sentence = f"Best: {first.label} with {_scored(best)}. Next: {second.label} with {_scored(next_best)}."
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


def _time_section(groups: Sequence[Group]) -> dict[str, Any]:
    """Phases of each group, of each rank of some runs, and what would help."""
    stacks: list[Stack] = []
    sentences: dict[str, list[str]] = {}
    rank_charts: list[dict[str, Any]] = []
    for group in groups:
        runs = [run for run in group.runs if run.time.phases]
        if not runs:
            continue
        seconds = np.array([[run.time.phases.get(phase, 0.0) for phase in PHASES] for run in runs])
        shares = (seconds / seconds.sum(axis=1, keepdims=True)).mean(axis=0)
        stacks.append(Stack(label=group.label, parts=shares.tolist()))
        if (largest := bottleneck(runs[0].time)) is not None:
            sentences.setdefault(largest.sentence, []).append(group.label)
        several = [run for run in runs if _rank_stacks(run)]
        if several and len(rank_charts) < _MAX_RANK_CHARTS:
            rank_charts.append(_rank_chart(several[0]))
    chart = None
    if stacks:
        shown_stacks = stacks[: 2 * NUM_STYLES]
        text = "Share of training time by phase, mean over ranks and runs."
        chart = Markup(stack_chart("Where time went", text, "% of time", PHASES, shown_stacks, percent=True))
    named = [
        (sentence, "All groups" if len(labels) == len(stacks) > 1 else "; ".join(labels))
        for sentence, labels in sentences.items()
    ]
    return {
        "chart": chart,
        "phases": PHASES,
        "rows": [(stack.label, [f"{100 * share:.1f}" for share in stack.parts]) for stack in stacks],
        "advice": named[:_MAX_SENTENCES],
        "ranks": rank_charts,
    }


def _rank_stacks(run: PageRun) -> list[Stack]:
    """A bar for each rank, if the run has several."""
    if len(run.time.phases_of_ranks) < 2:
        return []
    return [
        Stack(label=rank_name(run.time, i), parts=[phases[phase] for phase in PHASES])
        for i, phases in enumerate(run.time.phases_of_ranks[:_MAX_RANK_BARS])
    ]


def _rank_chart(run: PageRun) -> dict[str, Any]:
    stacks = _rank_stacks(run)
    text = f"Seconds in each phase on each of {len(run.time.phases_of_ranks)} ranks of {run.name}."
    chart = stack_chart(f"Ranks of {run.name}", text, "seconds", PHASES, stacks)
    left_out = len(run.time.phases_of_ranks) - len(stacks)
    return {
        "chart": Markup(chart),
        "straggler": straggler(run.time) or "No straggler: the ranks waited about equally long.",
        "left_out": left_out,
        "rows": [(stack.label, [f"{part:.2f}" for part in stack.parts]) for stack in stacks],
    }


def _settings_section(runs: Sequence[PageRun], groups: Sequence[Group]) -> dict[str, Any]:
    """The settings that differ between groups, and those that all runs share."""
    found = [run.found for run in runs]
    differ = differing(found)
    shared = {
        name: shown_setting(value)
        for name, value in found[0].settings.items()
        if name not in (*differ, "seed") and all(run.settings.get(name) == value for run in found)
    }
    rows: list[tuple[str, list[str]]] = []
    for group in groups:
        first = group.runs[0].found
        names = ", ".join(run.name for run in group.runs[:3]) + (", …" if len(group.runs) > 3 else "")
        values = [shown_setting(first.settings[name]) if name in first.settings else "–" for name in differ]
        rows.append((names, [*values, str(group.runs[0].time.num_ranks or "–")]))
    return {"names": [*short_names(differ), "ranks"], "rows": rows, "shared": shared}


def _run_row(run: PageRun, directory: Path) -> dict[str, Any]:
    found = run.found
    mark = "*" if found.return_from == "training" else ""
    return {
        "name": run.name,
        "link": _link(found.path, directory),
        "status": found.status,
        "error": " ".join(str(found.error).split()) if found.error else None,
        "cells": [
            shown_setting(found.settings.get("seed", "–")),
            str(run.time.num_ranks or "–"),
            *("–" if value is None else significant(value) + mark for value in (found.last_return, found.best_return)),
            compact(found.steps),
            "–" if found.steps_per_second is None else compact(found.steps_per_second),
            duration(run.summary["wall_time_s"]) if is_number(run.summary.get("wall_time_s")) else "–",
        ],
    }


def _sync_row(run: PageRun, runs: Sequence[PageRun]) -> dict[str, Any]:
    """Whether the ranks of a run ended with equal parameters and began with different data."""
    fingerprint = run.summary.get("params_fingerprint")
    ends = {rank.get("params_fingerprint") for rank in run.time.ranks}
    firsts = {rank.get("first_rollout_fingerprint") for rank in run.time.ranks}
    number = len(run.time.ranks)
    if not fingerprint or not number:
        equal = different = "not recorded"
    elif number == 1:
        equal = different = "a single rank"
    else:
        equal = f"equal on {number} ranks" if ends == {fingerprint} else "DIFFERENT between ranks"
        different = f"different on {number} ranks" if len(firsts) == number else "EQUAL on some ranks"
    twins = [
        r.name for r in runs if r is not run and fingerprint and r.summary.get("params_fingerprint") == fingerprint
    ]
    return {
        "name": run.name,
        "cells": [
            str(run.summary.get("num_shards") or "–"),
            fingerprint or "–",
            equal,
            different,
            ", ".join(twins) or "–",
        ],
    }


def _machines(runs: Sequence[PageRun]) -> list[dict[str, Any]]:
    """The distinct machines and versions, each with its runs."""
    found: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        where = "; ".join(
            f"{host.get('host')}: {host.get('cores')} cores, {host.get('processor') or 'unknown processor'}, "
            f"{host.get('device')}, ranks {', '.join(map(str, host.get('ranks') or []))}"
            for host in hosts(run.time)
        )
        used: dict[str, str] = {**(run.summary.get("versions") or {}), **(run.time.preflight.get("versions") or {})}
        listed = ", ".join(f"{name} {number}" for name, number in used.items())
        found.setdefault((where or "not recorded", listed or "not recorded"), []).append(run.name)
    return [{"machine": where, "versions": used, "runs": ", ".join(names)} for (where, used), names in found.items()]


def _scored(summary: ScoreSummary) -> str:
    value = significant(summary.iqm)
    if summary.interval is None:
        return value
    return f"{value} [{significant(summary.interval[0])}, {significant(summary.interval[1])}]"


def _last(values: np.ndarray) -> str:
    known = values[~np.isnan(values)]
    return significant(float(known[-1])) if len(known) else "no value"


def _time_unit(longest_s: float) -> tuple[float, str]:
    if longest_s > 3 * 3600:
        return 3600.0, "hours of training"
    return (60.0, "minutes of training") if longest_s > 600 else (1.0, "seconds of training")


def _link(path: Path, directory: Path) -> str:
    return quote(os.path.relpath(path.absolute(), directory))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _hash(text: str) -> str:
    """The source expression of an inline script or style sheet for the content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
