"""Read a run for the page: results, down-sampled curves, phases, machine and videos."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.cli.report.runs import (
    FoundRun,
    MetricsRow,
    found_run,
    mean_return,
    read_evaluations,
    read_json,
    read_metrics,
)
from lockstep.cli.report.time_use import TimeUse, read_time_use
from lockstep.record.run_dir import SUMMARY_FILE

Floats = NDArray[np.float64]

MAX_POINTS = 400
"""Points of one run's curve; longer ones are thinned evenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Returns of one run, in order of steps."""

    steps: Floats
    seconds: Floats
    """Training time of each point; interpolated from the metrics for evaluations."""
    values: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRun:
    """One run with everything that the page shows of it."""

    found: FoundRun
    summary: Mapping[str, Any]
    time: TimeUse
    curves: Mapping[str, Curve]
    """By source: `evaluation`, `training`, `estimate`; without the sources that the run has no points of."""
    videos: Sequence[Path]

    @property
    def name(self) -> str:
        """The name of the run directory."""
        return self.found.path.resolve().name

    @property
    def subject(self) -> str:
        """The task, or the logged data."""
        return str(self.found.settings.get("task") or self.found.settings.get("data") or "unknown task")


def read_page_run(path: Path) -> PageRun:
    """Read a run directory; missing, truncated or damaged files are skipped."""
    summary = read_json(path / SUMMARY_FILE)
    metrics, evaluations = read_metrics(path), read_evaluations(path)
    found = found_run(path, summary, metrics, evaluations)
    training = _curve(metrics, attrgetter("training_return"))
    estimate = _curve(metrics, attrgetter("estimate"))
    times = _curve(metrics, attrgetter("step"))
    means = [(row.step, mean_return(row)) for row in evaluations]
    points = [(step, mean) for step, mean in means if _is_number(step) and mean is not None]
    evaluation = None
    if points:
        steps, values = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
        seconds = np.interp(steps, times.steps, times.seconds) if times else np.full(len(steps), np.nan)
        evaluation = _thinned(Curve(steps=steps, seconds=seconds, values=values))
    curves = {"evaluation": evaluation, "training": training, "estimate": estimate}
    return PageRun(
        found=found,
        summary=summary,
        time=read_time_use(path, found, summary),
        curves={name: curve for name, curve in curves.items() if curve is not None},
        videos=sorted((path / "videos").glob("*.gif"), key=_step_of),
    )


def _curve(rows: Sequence[MetricsRow], value_of: Callable[[MetricsRow], Any]) -> Curve | None:
    """The rows that have a value, thinned."""
    kept = [row for row in rows if value_of(row) is not None]
    if len(kept) > MAX_POINTS:
        kept = [kept[int(i)] for i in _evenly(len(kept))]
    candidates = [(row.step, row.time_s, value_of(row)) for row in kept]
    points = [point for point in candidates if all(_is_number(number) for number in point)]
    if not points:
        return None
    steps, seconds, values = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    return Curve(steps=steps, seconds=seconds, values=values)


def _thinned(curve: Curve) -> Curve:
    if len(curve.steps) <= MAX_POINTS:
        return curve
    kept = _evenly(len(curve.steps))
    return Curve(steps=curve.steps[kept], seconds=curve.seconds[kept], values=curve.values[kept])


def _evenly(count: int) -> NDArray[np.intp]:
    """Indices of `MAX_POINTS` of `count` points, the first and the last among them."""
    return np.linspace(0, count - 1, MAX_POINTS).round().astype(np.intp)


def _step_of(video: Path) -> tuple[int, str]:
    """Sort `step_90000.gif` before `step_100000.gif`."""
    digits = "".join(letter for letter in video.stem if letter.isdigit())
    return int(digits or 0), video.name


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
