"""The section of the page on measurements of `lockstep scale`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from lockstep.cli.report.page.chart import Line, line_chart
from lockstep.cli.report.scale_table import (
    SCALE_FILE,
    cores_warning,
    mode_title,
    model_rows,
    model_sentence,
    rows_of,
    subject_of,
    times_of,
)
from lockstep.record.follow import read_json


def read_scales(paths: Sequence[Path], runs: Sequence[Path]) -> dict[Path, dict[str, Any]]:
    """The measurements in `paths` and below them, by their directory; `runs` are the run directories there."""
    folders = dict.fromkeys([*paths, *(run.parent for run in runs if run not in paths)])
    found = {folder: read_json(folder / SCALE_FILE) for folder in folders}
    return {folder: one for folder, one in found.items() if one.get("schema") == 1}


def is_measurement(run: Path, scales: Mapping[Path, object]) -> bool:
    """Whether a run only measured speed: its return says nothing about its settings."""
    return run.parent in scales and run.name.startswith(("strong_ranks_", "weak_ranks_"))


def scaling_section(results: Mapping[str, Any]) -> dict[str, Any]:
    """The texts, charts and tables of one measurement."""
    modes = {mode: found for mode, found in results["scaling"].items() if found}
    tables = [
        {"caption": _capitalized(mode_title(results, mode)), "rows": rows_of(found)} for mode, found in modes.items()
    ]
    times = results["time_to_return"]
    if times:
        caption = f"Time to a return of {results['plan']['target_return']:g}"
        tables.append({"caption": caption, "rows": times_of(times)})
    model = results["model"]
    charts = [_speed_up_chart(modes)] if modes else []
    if times and any(one["seconds"] for one in times):
        charts.append(_time_chart(times))
    return {
        "title": subject_of(results),
        "warning": _capitalized(cores_warning(results) or ""),
        "charts": charts,
        "tables": tables,
        "model": _capitalized(model_sentence(model)),
        "model_rows": None if "error" in model else model_rows(model),
        "failures": [f"{name} failed: {reason}" for name, reason in results["failures"].items()],
    }


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _speed_up_chart(modes: Mapping[str, Sequence[Mapping[str, Any]]]) -> Markup:
    lines = [
        _line(f"{mode} scaling", found, [one["speed_up"] for one in found], style)
        for style, (mode, found) in enumerate(modes.items())
    ]
    ranks = sorted({one["ranks"] for found in modes.values() for one in found})
    ideal = np.array([number / ranks[0] for number in ranks])
    lines.append(Line(label="without loss", x=np.array(ranks, float), y=ideal, style=None))
    spoken = "; ".join(
        f"{mode} scaling on {one['ranks']} ranks: {one['speed_up']['median']:.2f}"
        for mode, found in modes.items()
        for one in found
    )
    title, description = "Speed-up by ranks", f"Median speed-up with smallest and largest: {spoken}."
    return Markup(line_chart(title, description, ("ranks", "times the speed"), lines, whole=True))


def _time_chart(times: Sequence[Mapping[str, Any]]) -> Markup:
    reached = [one for one in times if one["seconds"]]
    line = _line("seconds until the return", reached, [one["seconds"] for one in reached], 0)
    spoken = "; ".join(f"{one['ranks']} ranks: {one['seconds']['median']:.1f} s" for one in reached)
    return Markup(
        line_chart("Time to the return", f"Median over seeds: {spoken}.", ("ranks", "seconds"), [line], whole=True)
    )


def _line(
    label: str, by_ranks: Sequence[Mapping[str, Any]], spreads: Sequence[Mapping[str, float]], style: int
) -> Line:
    middle, low, high = (np.array([one[key] for one in spreads], float) for key in ("median", "low", "high"))
    return Line(
        label=label, x=np.array([one["ranks"] for one in by_ranks], float), y=middle, low=low, high=high, style=style
    )
