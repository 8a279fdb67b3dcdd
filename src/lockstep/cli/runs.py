"""`lockstep runs`: list runs, the most recently written first. Reads the ends of their files only."""

import argparse
import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from lockstep.cli.report.runs import DAMAGED, damage_of, find_runs, printable, ranks_of, read_evaluations
from lockstep.cli.report.table import TRAINING_MARK, TRAINING_NOTE, print_rows
from lockstep.cli.terminal import output_console, steps_text
from lockstep.config import settings
from lockstep.errors import ConfigError
from lockstep.record.evaluations import mean_return
from lockstep.record.file_numbers import number_of, whole_number_of
from lockstep.record.follow import last_line, read_json
from lockstep.record.latest import latest_step
from lockstep.record.run_dir import EVALUATIONS_FILE, METRICS_FILE, RUN_FILE, SUMMARY_FILE
from lockstep.record.run_status import is_running, status_of, written_at
from lockstep.record.text import significant

_SHOWN = ("task", "data", "algo", "ml_framework", "seed", "total_steps", "devices_per_process")
"""Top-level entries of `run.yaml` that are read."""
_ENTRY = re.compile(r"^(\w+):.*\n?(?: .*\n?|\n)*", re.MULTILINE)
"""A top-level entry of `run.yaml`, with the indented lines on which a long one continues."""
_HEADS = ("run", "status", "task", "algo", "framework", "ranks", "seed", "return", "steps", "age")
_NUM_NAMES = 5
"""Columns of names, which come first; numbers follow."""
_MISSING = "-"
_EVENT_FILE = re.compile(r"events\.out\.tfevents\.(\d{10})\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """One run; what its files do not have is None."""

    run: str
    """Its directory."""
    status: str
    """The status in `summary.json`, or `running`; `cut short` if its processes ended without a result.

    `damaged` if its files cannot be understood.
    """
    error: str | None
    """Why it failed or is damaged."""
    task: str | None
    """Task, or the logged data that it learns from."""
    algo: str | None
    ml_framework: str | None
    ranks: int | None
    seed: int | None
    last_return: float | None
    return_from: str | None
    """`evaluation`, or `training` (mean of the last 100 episodes)."""
    steps: int
    total_steps: int | None
    started: str | None
    """When the run began, ISO 8601 in UTC."""
    age_s: float | None
    """Seconds since its files were last written."""


def runs_command(args: argparse.Namespace) -> int:
    """`lockstep runs`; returns the exit code."""
    if not args.dir and not Path("runs").is_dir():
        raise ConfigError("there is no runs/ here; name a directory of runs: lockstep runs DIR")
    found = [_listed(path) for path in find_runs([Path(name) for name in args.dir or ["runs"]])]
    found.sort(key=lambda run: float("inf") if run.age_s is None else run.age_s)
    if args.json:
        print(json.dumps({"runs": [asdict(run) for run in found]}, indent=2))
        return 0
    _print_table(found, output_console())
    return 0


def _listed(path: Path) -> ListedRun:
    """A line for any run: one that cannot be understood is listed as damaged."""
    try:
        return list_run(path)
    except Exception as error:  # files of another program may hold anything
        unknown: dict[str, Any] = dict.fromkeys(field.name for field in fields(ListedRun))
        known: dict[str, Any] = {"run": str(path), "status": DAMAGED, "error": damage_of(error), "steps": 0}
        return ListedRun(**unknown | known)


def list_run(path: Path) -> ListedRun:
    """Read what is listed of a run; missing, truncated or damaged files are skipped."""
    config, summary, metrics = _read_shown(path), read_json(path / SUMMARY_FILE), last_line(path / METRICS_FILE)
    status = status_of(summary, running=is_running(path))
    value, source = _last_return(path, metrics, summary)
    step = max(whole_number_of(metrics.get("step")) or 0, latest_step(path) or 0)
    ended = None if status in ("running", "cut short") else whole_number_of(summary.get("env_steps"))
    changed = written_at(path)
    return ListedRun(
        run=str(path),
        status=status,
        error=summary.get("error") if status == "failed" else None,
        task=config.get("task") or config.get("data") or summary.get("task"),
        algo=summary.get("algo") or config.get("algo"),
        ml_framework=config.get("ml_framework") or summary.get("ml_framework"),
        ranks=whole_number_of(summary.get("world_size")) or _planned_ranks(path, config),
        seed=config.get("seed", summary.get("seed")),
        last_return=value,
        return_from=source,
        steps=ended or step,
        total_steps=whole_number_of(config.get("total_steps")),
        started=_began_at(path),
        age_s=round(time.time() - changed, 3) if changed else None,
    )


def _read_shown(path: Path) -> Mapping[str, Any]:
    """The listed entries of `run.yaml`: parsing all of it would take ten times as long."""
    try:
        shown = _ENTRY.finditer((path / RUN_FILE).read_text(encoding="utf-8"))
        found = settings.parse("".join(entry[0] for entry in shown if entry[1] in _SHOWN), RUN_FILE)
    except (OSError, UnicodeDecodeError, ConfigError):
        return {}
    return cast(Mapping[str, Any], found) if isinstance(found, Mapping) else {}


def _last_return(path: Path, metrics: Mapping[str, Any], summary: Mapping[str, Any]) -> tuple[float | None, str | None]:
    evaluation = last_line(path / EVALUATIONS_FILE)
    mean = mean_return(evaluation.get("returns"))
    if mean is None and evaluation:  # none of its episodes has a return: one before it counts, as in reports
        means = (mean_return(row.returns) for row in reversed(read_evaluations(path)))
        mean = next((mean for mean in means if mean is not None), None)
    for value, source in (
        (mean, "evaluation"),
        (number_of(summary.get("eval_return_mean")), "evaluation"),
        (number_of(metrics.get("episode/return_mean_100")), "training"),
    ):
        if value is not None:
            return value, source
    return None, None


def _planned_ranks(path: Path, config: Mapping[str, Any]) -> int | None:
    """The ranks of a run without a result."""
    return ranks_of(read_json(path / "preflight.json").get("world_size"), config.get("devices_per_process"))


def _began_at(path: Path) -> str | None:
    """When the run began: `run.yaml` was written then, unless `--resume --set` has written it again.

    The names of TensorBoard's files keep the time of the first start, to some seconds.
    """
    times = [float(found[1]) for file in (path / "tensorboard").glob("*") if (found := _EVENT_FILE.match(file.name))]
    with suppress(OSError):
        times.append((path / RUN_FILE).stat().st_mtime)
    return datetime.fromtimestamp(min(times), UTC).isoformat(timespec="seconds") if times else None


def _print_table(runs: Sequence[ListedRun], console: Console) -> None:
    print_rows(_HEADS, [_cells(run) for run in runs], console, left=_NUM_NAMES)
    if any(run.return_from == "training" for run in runs):
        console.print(TRAINING_NOTE, highlight=False)
    for run in runs:
        if run.status == DAMAGED:
            note = printable(f"{run.run} is damaged: {run.error}")
            console.print(note, markup=False, highlight=False, soft_wrap=True)


def _cells(run: ListedRun) -> list[str]:
    value = _MISSING if run.last_return is None else significant(run.last_return)
    names = (run.task, run.algo, run.ml_framework, run.ranks, run.seed)
    return [
        run.run,
        run.status,
        *(_MISSING if cell is None else str(cell) for cell in names),
        value + TRAINING_MARK * (run.return_from == "training"),
        steps_text(run.steps, run.total_steps, run.status),
        _MISSING if run.age_s is None else age(run.age_s),
    ]


def age(seconds: float) -> str:
    """The largest unit of a duration: `12 s`, `3 min`, `5 h`, `2 d`."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(int(seconds), 0)} s"
