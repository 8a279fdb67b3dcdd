"""Read a run for the page: results, down-sampled curves, phases, machine and videos."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

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
from lockstep.distributed.timers import PHASES
from lockstep.record.follow import last_line
from lockstep.record.run_dir import METRICS_FILE, RANKS_FILE, SUMMARY_FILE

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
    preflight: Mapping[str, Any]
    curves: Mapping[str, Curve]
    """By source: `evaluation`, `training`, `estimate`; without the sources that the run has no points of."""
    phases: Mapping[str, float]
    """Seconds in each phase, mean over ranks; empty if unknown."""
    phases_of_ranks: Sequence[Mapping[str, float]]
    """Seconds in each phase on each rank; empty if unknown. One entry per process where that drives several devices."""
    videos: Sequence[Path]

    @property
    def name(self) -> str:
        """The name of the run directory."""
        return self.found.path.resolve().name

    @property
    def subject(self) -> str:
        """The task, or the logged data."""
        return str(self.found.settings.get("task") or self.found.settings.get("data") or "unknown task")

    @property
    def num_ranks(self) -> int | None:
        """The number of ranks, also of a run without a result; None if unknown."""
        if self.found.ranks is not None:
            return self.found.ranks
        processes = self.preflight.get("world_size")
        devices = self.found.settings.get("devices_per_process", 1)
        return processes * devices if isinstance(processes, int) and isinstance(devices, int) else None

    @property
    def ranks(self) -> list[Mapping[str, Any]]:
        """The entry of each rank in `summary.json`."""
        ranks = self.summary.get("ranks")
        return [rank for rank in cast(list[Any], ranks) if isinstance(rank, Mapping)] if isinstance(ranks, list) else []


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
        preflight=read_json(path / "preflight.json"),
        curves={name: curve for name, curve in curves.items() if curve is not None},
        phases=_phases(path, summary),
        phases_of_ranks=_phases_of_ranks(path),
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


def _phases(path: Path, summary: Mapping[str, Any]) -> dict[str, float]:
    """Seconds in each phase, from the summary, or from the last line of metrics of a run without one."""
    given = summary.get("phases_s")
    if not isinstance(given, Mapping) or not any(cast(Mapping[str, Any], given).values()):
        last = last_line(path / METRICS_FILE)
        given = {phase: last.get(f"time/{phase}_s") for phase in PHASES}
    found = cast(Mapping[str, Any], given)
    seconds = {phase: float(found[phase]) for phase in PHASES if _is_number(found.get(phase))}
    return seconds if sum(seconds.values()) > 0 else {}


def _phases_of_ranks(path: Path) -> list[dict[str, float]]:
    """Seconds in each phase on each rank, from the last line of `ranks.jsonl`; empty if unknown."""
    given = last_line(path / RANKS_FILE).get("phases_s")
    if not isinstance(given, Mapping):
        return []
    columns = cast(Mapping[str, Any], given)
    if not all(isinstance(columns.get(phase), list) for phase in PHASES):
        return []
    return [dict(zip(PHASES, row, strict=True)) for row in zip(*(columns[phase] for phase in PHASES), strict=False)]


def _step_of(video: Path) -> tuple[int, str]:
    """Sort `step_90000.gif` before `step_100000.gif`."""
    digits = "".join(letter for letter in video.stem if letter.isdigit())
    return int(digits or 0), video.name


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
