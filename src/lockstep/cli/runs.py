"""`lockstep runs`: list runs, the most recently written first. Reads the ends of their files only."""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from rich.console import Console
from rich.text import Text

from lockstep.cli.report.runs import find_runs
from lockstep.cli.terminal import STATUS_COLORS, output_console, plain_table, steps_text
from lockstep.config import settings
from lockstep.errors import ConfigError
from lockstep.record.console import significant
from lockstep.record.follow import last_line, read_json
from lockstep.record.run_dir import EVALUATIONS_FILE, METRICS_FILE, RUN_FILE, SUMMARY_FILE
from lockstep.record.run_status import is_running, status_of, written_at

_SHOWN = ("task", "data", "algo", "ml_framework", "seed", "total_steps")
"""Top-level entries of `run.yaml` that are listed."""
_MISSING = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """One run; what its files do not have is None."""

    run: str
    """Its directory."""
    status: str
    """The status in `summary.json`, or `running`; `cut short` if its processes ended without a result."""
    error: str | None
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
    """When the directory was made, ISO 8601 in UTC."""
    age_s: float | None
    """Seconds since its files were last written."""


def runs_command(args: argparse.Namespace) -> int:
    """`lockstep runs`; returns the exit code."""
    if args.dir is None and not Path("runs").is_dir():
        raise ConfigError("there is no runs/ here; name a directory of runs: lockstep runs DIR")
    found = [list_run(path) for path in find_runs([Path(args.dir or "runs")])]
    found.sort(key=lambda run: float("inf") if run.age_s is None else run.age_s)
    if args.json:
        print(json.dumps({"runs": [asdict(run) for run in found]}, indent=2))
        return 0
    _print_table(found, output_console())
    return 0


def list_run(path: Path) -> ListedRun:
    """Read what is listed of a run; missing, truncated or damaged files are skipped."""
    config, summary = _read_shown(path), read_json(path / SUMMARY_FILE)
    metrics, evaluation = last_line(path / METRICS_FILE), last_line(path / EVALUATIONS_FILE)
    status = status_of(summary, running=is_running(path))
    value, source = _last_return(metrics, evaluation, summary)
    steps = metrics.get("step") if status in ("running", "cut short") else summary.get("env_steps")
    changed = written_at(path)
    started = None
    with suppress(OSError):
        started = datetime.fromtimestamp((path / RUN_FILE).stat().st_mtime, UTC).isoformat(timespec="seconds")
    return ListedRun(
        run=str(path),
        status=status,
        error=summary.get("error") if status == "failed" else None,
        task=config.get("task") or config.get("data") or summary.get("task"),
        algo=config.get("algo") or summary.get("algo"),
        ml_framework=config.get("ml_framework") or summary.get("ml_framework"),
        ranks=summary.get("world_size") or read_json(path / "preflight.json").get("world_size"),
        seed=config.get("seed", summary.get("seed")),
        last_return=value,
        return_from=source,
        steps=int(steps or metrics.get("step") or 0),
        total_steps=config.get("total_steps"),
        started=started,
        age_s=round(time.time() - changed, 3) if changed else None,
    )


def _read_shown(path: Path) -> Mapping[str, Any]:
    """The listed entries of `run.yaml`: parsing all of it would take ten times as long."""
    try:
        lines = (path / RUN_FILE).read_text(encoding="utf-8").splitlines()
        shown = [line for line in lines if line.partition(":")[0] in _SHOWN]
        found = settings.parse("\n".join(shown), RUN_FILE)
    except (OSError, UnicodeDecodeError, ConfigError):
        return {}
    return cast(Mapping[str, Any], found) if isinstance(found, Mapping) else {}


def _last_return(
    metrics: Mapping[str, Any], evaluation: Mapping[str, Any], summary: Mapping[str, Any]
) -> tuple[float | None, str | None]:
    returns = evaluation.get("returns")
    if isinstance(returns, list) and returns:
        with suppress(TypeError):
            return fmean(cast(list[float], returns)), "evaluation"
    for value, source in (
        (summary.get("eval_return_mean"), "evaluation"),
        (metrics.get("episode/return_mean_100"), "training"),
    ):
        if isinstance(value, int | float):
            return float(value), source
    return None, None


def _print_table(runs: Sequence[ListedRun], console: Console) -> None:
    table = plain_table()
    for name in ("run", "status", "task", "algo", "framework"):
        table.add_column(name, no_wrap=name != "run", overflow="fold")
    for name in ("ranks", "seed", "return", "steps", "age"):
        table.add_column(name, no_wrap=True, justify="right")
    for run in runs:
        value = _MISSING if run.last_return is None else significant(run.last_return)
        table.add_row(
            Text(run.run),
            Text(run.status, style=STATUS_COLORS.get(run.status, "")),
            *(Text(_MISSING if cell is None else str(cell)) for cell in (run.task, run.algo, run.ml_framework)),
            *(_MISSING if cell is None else str(cell) for cell in (run.ranks, run.seed)),
            value + "*" * (run.return_from == "training"),
            steps_text(run.steps, run.total_steps, run.status),
            _MISSING if run.age_s is None else age(run.age_s),
        )
    console.print(table)
    if any(run.return_from == "training" for run in runs):
        console.print("* mean return of the last 100 training episodes: nothing was evaluated yet", highlight=False)


def age(seconds: float) -> str:
    """The largest unit of a duration: `12 s`, `3 min`, `5 h`, `2 d`."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(int(seconds), 0)} s"
