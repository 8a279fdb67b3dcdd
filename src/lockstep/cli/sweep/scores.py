"""Scores of the runs of a sweep, and their aggregates over seeds."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from lockstep.cli.report.runs import FoundRun, read_run
from lockstep.cli.sweep.sweep_file import Sweep
from lockstep.cli.sweep.trial import SweepRun, Trial
from lockstep.cli.terminal import plain_table, shown_setting, tally
from lockstep.record.file_numbers import number_of
from lockstep.record.follow import last_line
from lockstep.record.run_dir import METRICS_FILE
from lockstep.record.score_statistics import ScoreSummary, summarize
from lockstep.record.text import significant

_MISSING = "-"


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The runs of a trial and their aggregate."""

    trial: Trial
    runs: list[SweepRun]
    scores: dict[int, float]
    """By seed, of the runs that have ended successfully."""
    summary: ScoreSummary | None
    """None without a score."""
    from_training: bool
    """Whether a score is a training return, as nothing was evaluated."""
    estimated: bool
    """Whether a score is an estimate from logged data."""
    doubtful: bool
    """Whether one of these estimates is not reliable, by the verdict of its run."""
    steps_per_second: float | None
    """Mean over the runs."""


def score_of(sweep_run: SweepRun, metric: str) -> float | None:
    """The score of a run that has ended successfully; None if it has none."""
    return None if sweep_run.status != "done" else _score(read_run(sweep_run.path), metric)


def _score(found: FoundRun, metric: str) -> float | None:
    if metric in ("last_return", "best_return"):
        value = found.last_return if metric == "last_return" else found.best_return
        # A run that learns from logged data has no return without a simulator, but an estimate of it.
        return found.estimate[0] if value is None and found.estimate is not None else value
    return number_of(last_line(found.path / METRICS_FILE).get(metric))


def is_estimated(found: FoundRun, metric: str) -> bool:
    """Whether the score of a run is an estimate: it learned from logged data, and there is no simulator."""
    value = found.last_return if metric == "last_return" else found.best_return
    return metric in ("last_return", "best_return") and value is None and found.estimate is not None


def results(runs: Sequence[SweepRun], sweep: Sweep) -> list[TrialResult]:
    """The result of each trial, the best first; trials without a score last."""
    trials = dict.fromkeys(sweep_run.trial for sweep_run in runs)
    found = [_result(trial, [sweep_run for sweep_run in runs if sweep_run.trial is trial], sweep) for trial in trials]
    sign = -1.0 if sweep.direction == "maximize" else 1.0
    return sorted(found, key=lambda one: (one.summary is None, 0.0 if one.summary is None else sign * one.summary.iqm))


def _result(trial: Trial, runs: list[SweepRun], sweep: Sweep) -> TrialResult:
    read = {sweep_run.seed: read_run(sweep_run.path) for sweep_run in runs if sweep_run.status == "done"}
    scores = {seed: score for seed, run in read.items() if (score := _score(run, sweep.metric)) is not None}
    speeds = [run.steps_per_second for run in read.values() if run.steps_per_second]
    from_training = "/" not in sweep.metric and any(run.return_from == "training" for run in read.values())
    estimated = [run for run in read.values() if is_estimated(run, sweep.metric)]
    doubtful = any(run.estimate_is_doubtful for run in estimated)
    summary = summarize(list(scores.values())) if scores else None
    speed = sum(speeds) / len(speeds) if speeds else None
    return TrialResult(trial, runs, scores, summary, from_training, bool(estimated), doubtful, speed)


def as_json(found: Sequence[TrialResult], sweep: Sweep) -> str:
    """All scores and aggregates, for scripts."""
    listed: list[dict[str, Any]] = [
        {
            "name": one.trial.name,
            "settings": dict(one.trial.settings),
            "runs": [
                {
                    "run": sweep_run.name,
                    "seed": sweep_run.seed,
                    "status": sweep_run.status,
                    "reason": sweep_run.reason,
                    "score": one.scores.get(sweep_run.seed),
                }
                for sweep_run in one.runs
            ],
            "summary": None if one.summary is None else asdict(one.summary),
        }
        for one in found
    ]
    return json.dumps({"metric": sweep.metric, "direction": sweep.direction, "trials": listed}, indent=2) + "\n"


def print_results(found: Sequence[TrialResult], sweep: Sweep, console: Console) -> None:
    """Print one row per trial, then the reasons of failed runs."""
    names = list(dict.fromkeys(name for one in found for name in one.trial.settings))
    table = plain_table()
    for name in names or ["runs"]:
        table.add_column(name.rpartition(".")[2], no_wrap=True)
    for head in ("seeds", "IQM", "95% interval", "median", "min", "max", "steps/s", "status"):
        table.add_column(head, no_wrap=True, justify="left" if head == "status" else "right")
    for one in found:
        settings = [
            shown_setting(one.trial.settings[name]) if name in one.trial.settings else _MISSING for name in names
        ]
        table.add_row(*(settings or ["all"]), *_numbers(one), _states(one.runs))
    what = {"last_return": "last return", "best_return": "best return"}.get(sweep.metric, sweep.metric)
    console.print(f"{what} over seeds, {sweep.direction}d:" if names else f"{what} over seeds:", style="bold")
    console.print(table)
    if any(one.from_training for one in found):
        console.print("* mean return of the last 100 training episodes: nothing was evaluated", highlight=False)
    if any(one.estimated for one in found):
        console.print("~ estimate from logged data; ~? by the verdict of its run, not reliable", highlight=False)
    done = [(one, sweep_run) for one in found for sweep_run in one.runs if sweep_run.status == "done"]
    if without := [sweep_run.name for one, sweep_run in done if sweep_run.seed not in one.scores]:
        console.print(f"no {what}: {', '.join(without)}", markup=False, highlight=False, soft_wrap=True)
    for one in found:
        for sweep_run in one.runs:
            if sweep_run.status == "failed":
                console.print(
                    f"{sweep_run.name} failed: {sweep_run.reason}", markup=False, highlight=False, soft_wrap=True
                )


def _numbers(one: TrialResult) -> list[str]:
    summary = one.summary
    if summary is None:
        return ["0", *[_MISSING] * 6]
    interval = _MISSING
    if summary.interval is not None:
        interval = f"[{significant(summary.interval[0])}, {significant(summary.interval[1])}]"
    values = [significant(value) for value in (summary.median, summary.minimum, summary.maximum)]
    speed = _MISSING if one.steps_per_second is None else f"{one.steps_per_second:.0f}"
    mark = "*" * one.from_training + "~" * one.estimated + "?" * one.doubtful
    return [str(summary.count), significant(summary.iqm) + mark, interval, *values, speed]


def _states(runs: Sequence[SweepRun]) -> str:
    """`done`, or `3 done, 2 failed`."""
    states = [sweep_run.status for sweep_run in runs]
    return states[0] if len(set(states)) == 1 else tally(states)
