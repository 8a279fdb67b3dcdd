"""Read a run for the page: results, down-sampled curves, phases, machine and videos."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.cli.report.runs import FoundRun, damaged_run, found_run, read_evaluations, read_metrics
from lockstep.cli.report.time_use import TimeUse, read_time_use
from lockstep.record.evaluations import mean_return
from lockstep.record.file_numbers import LARGEST_DRAWN
from lockstep.record.follow import read_json
from lockstep.record.run_dir import SUMMARY_FILE
from lockstep.record.score_statistics import Floats

_NUMBERS = (int, float)
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

    name: str
    """The name of the run directory, with directories above it where another run has the same."""
    found: FoundRun
    summary: Mapping[str, Any]
    time: TimeUse
    curves: Mapping[str, Curve]
    """By source: `evaluation`, `training`, `estimate`; without the sources that the run has no points of."""
    videos: Sequence[Path]

    @property
    def subject(self) -> str:
        """The task, or the logged data."""
        return str(self.found.settings.get("task") or self.found.settings.get("data") or "unknown task")


def read_page_runs(paths: Sequence[Path]) -> list[PageRun]:
    """Read run directories."""
    return [read_page_run(path, name) for path, name in zip(paths, _distinct_names(paths), strict=True)]


def read_page_run(path: Path, name: str | None = None) -> PageRun:
    """Read a run directory; missing, truncated or damaged files are skipped.

    Args:
        path: the run directory.
        name: on the page; None: the name of the directory.
    """
    name = name or path.resolve().name
    try:
        return _read(path, name)
    except Exception as error:  # files of another program may hold anything, and other runs are still to be shown
        found = damaged_run(path, error)
        time = TimeUse(found=found, summary={}, preflight={}, phases={}, phases_of_ranks=())
        return PageRun(name=name, found=found, summary={}, time=time, curves={}, videos=())


def _read(path: Path, name: str) -> PageRun:
    summary = read_json(path / SUMMARY_FILE)
    metrics, evaluations = read_metrics(path), read_evaluations(path)
    found = found_run(path, summary, metrics, evaluations)
    evaluation = _curve((row.step, math.nan, mean_return(row.returns)) for row in evaluations)
    times = _curve((row.step, row.time_s, row.step) for row in metrics)
    if evaluation and times:
        evaluation = replace(evaluation, seconds=np.interp(evaluation.steps, times.steps, times.seconds))
    curves = {
        "evaluation": evaluation,
        "training": _curve((row.step, row.time_s, row.training_return) for row in metrics),
        "estimate": _curve((row.step, row.time_s, row.estimate) for row in metrics),
    }
    return PageRun(
        name=name,
        found=found,
        summary=summary,
        time=read_time_use(found, summary),
        curves={name: curve for name, curve in curves.items() if curve is not None},
        videos=sorted((path / "videos").glob("*.gif"), key=_step_of),
    )


def _distinct_names(paths: Sequence[Path]) -> list[str]:
    """The shortest end of each path that no other has: `seed_0`, or `gamma=0.9/seed_0` beside `gamma=0.8/seed_0`."""
    parts = [path.resolve().parts for path in paths]
    names = [""] * len(paths)
    depth, unresolved = 0, list(range(len(paths)))
    while unresolved:
        depth += 1
        for i in unresolved:
            names[i] = "/".join(parts[i][-depth:])
        tally = Counter(names[i] for i in unresolved)
        unresolved = [i for i in unresolved if tally[names[i]] > 1 and depth < len(parts[i])]
    return names


def _curve(rows: Iterable[tuple[Any, Any, Any]]) -> Curve | None:
    """The points whose step, seconds and value are known, thinned evenly; the first and the last stay.

    Seconds may be NaN; values that are too large to be averaged are left out, as are those that a later start of the
    run made again. Seconds that do not ascend, since a later start counted from 0, become NaN.
    """
    points = [
        point
        for point in rows
        if type(point[2]) in _NUMBERS
        and type(point[0]) in _NUMBERS
        and type(point[1]) in _NUMBERS
        and abs(point[0]) <= LARGEST_DRAWN
        and abs(point[2]) <= LARGEST_DRAWN
    ]  # built-ins only: there may be millions of rows
    points = _last_made(points)
    if not points:
        return None
    if any(one[1] > other[1] for one, other in pairwise(points)):
        points = [(step, math.nan, value) for step, _, value in points]
    kept = np.linspace(0, len(points) - 1, min(len(points), MAX_POINTS)).round().astype(np.intp)
    steps, seconds, values = np.array([points[i] for i in kept], dtype=np.float64).T
    return Curve(steps=steps, seconds=seconds, values=values)


def _last_made(points: Sequence[tuple[Any, Any, Any]]) -> list[tuple[Any, Any, Any]]:
    """The points in order of steps, without those that a later line repeats or goes back before."""
    found: list[tuple[Any, Any, Any]] = []
    for point in reversed(points):
        if not found or point[0] < found[-1][0]:
            found.append(point)
    return found[::-1]


def _step_of(video: Path) -> tuple[int, str]:
    """Sort `step_90000.gif` before `step_100000.gif`."""
    digits = "".join(letter for letter in video.stem if letter.isdigit())
    return int(digits or 0), video.name
