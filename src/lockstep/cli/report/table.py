"""The table of `lockstep report`: differing settings and results of runs."""

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from lockstep.cli.report.runs import DAMAGED, FoundRun, printable
from lockstep.cli.report.time_use import Bottleneck, bottleneck, read_time_use, sentence_of, straggler
from lockstep.cli.terminal import STATUS_COLORS, plain_table, shown_setting, steps_text
from lockstep.config.settings import short_names
from lockstep.record.checkpoint import FOLDER
from lockstep.record.json_lines import finite
from lockstep.record.run_dir import is_own_loop
from lockstep.record.text import counted, significant

_MISSING = "-"
TRAINING_MARK = "*"
TRAINING_NOTE = (
    f"{TRAINING_MARK} mean return of the last 100 training episodes or more: no evaluation gave a return yet"
)
"""What the mark after a return means."""
_DOUBTFUL = "?"
_GAP = 2
"""Spaces between columns."""
_NAMED_RUNS = 3
"""Runs that a line about several names."""
NOT_COMPARED = ("seed", "trackers")
"""Settings in which runs of the same experiment may differ."""


def print_tables(runs: Sequence[FoundRun], console: Console) -> None:
    """Print a table of the online runs and one of the offline runs.

    On a terminal that is too narrow, each run takes several lines instead of a row.
    """
    logged = [run for run in runs if run.settings.get("data") is not None]
    for some in ([run for run in runs if run not in logged], logged):
        if some:
            _print_table(some, console)
    for note in [*_notes(runs), *_time_notes(runs)]:
        console.print(printable(note), highlight=False, markup=False, soft_wrap=not console.is_terminal)


def _print_table(runs: Sequence[FoundRun], console: Console) -> None:
    differ, several_ranks = differing(runs), len({run.ranks for run in runs}) > 1
    heads = _columns(differ, several_ranks)
    rows = [_cells(run, differ, several_ranks) for run in runs]
    kept = [i for i in range(len(heads)) if i < 2 or any(row[i] != _MISSING for row in rows)]
    heads, rows = [heads[i] for i in kept], [[row[i] for i in kept] for row in rows]
    console.print(_subject(runs), style="bold", highlight=False, markup=False, soft_wrap=True)
    print_rows(heads, rows, console)


def print_rows(heads: Sequence[str], rows: Sequence[Sequence[str]], console: Console, left: int = 2) -> None:
    """Print a table of runs, a row each; on a terminal that is too narrow, each run takes several lines.

    Args:
        heads: names of the columns, the first two the run and its status.
        rows: texts.
        console: where to.
        left: number of columns, from the first, that are aligned to the left.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    wide = sum(max(cell_len(row[i]) for row in [heads, *rows]) + _GAP for i in range(len(heads)))
    if console.is_terminal and wide > console.width:
        _print_lines(heads, rows, console)
        return
    table = plain_table()
    for i, head in enumerate(heads):
        table.add_column(head, no_wrap=True, justify="left" if i < left else "right")
    for row in rows:
        table.add_row(*(_colored(cell) if i == 1 else Text(cell) for i, cell in enumerate(row)))
    console.print(table)


def as_json(runs: Sequence[FoundRun]) -> str:
    """The table as JSON, for scripts."""
    differ = differing(runs)
    listed = [
        {
            "run": str(run.path),
            "status": run.status,
            "error": run.error,
            "task": run.settings.get("task"),
            "algo": run.settings.get("algo"),
            "seed": run.settings.get("seed"),
            "ranks": run.ranks,
            "settings": {name: run.settings.get(name) for name in differ},
            "last_return": run.last_return,
            "best_return": run.best_return,
            "return_from": run.return_from,
            "estimate": None
            if run.estimate is None
            else {
                **dict(zip(("value", "low", "high"), run.estimate, strict=True)),
                "reliable": not run.estimate_is_doubtful,
            },
            "steps": run.steps,
            "total_steps": run.total_steps,
            "steps_per_second": run.steps_per_second,
            **_time_json(run),
        }
        for run in runs
    ]
    return json.dumps(finite({"runs": listed}), indent=2, allow_nan=False, default=str)


def differing(runs: Sequence[FoundRun]) -> list[str]:
    """The settings that differ between runs, without seed and trackers; settings of one algorithm only are left out."""
    algos = {str(run.settings.get("algo")) for run in runs if run.settings}
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in NOT_COMPARED)
    found: list[str] = []
    for name in names:
        values = [_exact(run.settings[name]) for run in runs if name in run.settings]
        missing = len(algos) == 1 and any(name not in run.settings for run in runs if run.settings)
        if missing or len(set(values)) > 1:
            found.append(name)
    return found


def _exact(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _columns(differ: Sequence[str], several_ranks: bool) -> list[str]:
    results = ["last return", "best return", "estimate", "logged", "steps", "steps/s"]
    return [
        "run",
        "status",
        *short_names(differ),
        *(["ranks"] if several_ranks else []),
        "seed",
        *results,
    ]


def _cells(run: FoundRun, differ: Sequence[str], several_ranks: bool) -> list[str]:
    settings = [shown_setting(run.settings[name]) if name in run.settings else _MISSING for name in differ]
    ranks = [_MISSING if run.ranks is None else str(run.ranks)] if several_ranks else []
    mark = TRAINING_MARK if run.return_from == "training" else ""
    returns = [_MISSING if value is None else significant(value) + mark for value in (run.last_return, run.best_return)]
    steps = steps_text(run.steps, run.total_steps, run.status)
    speed = _MISSING if run.steps_per_second is None else f"{run.steps_per_second:.0f}"
    seed = shown_setting(run.settings["seed"]) if "seed" in run.settings else _MISSING
    logged = _MISSING if run.logged is None else significant(run.logged)
    return [str(run.path), run.status, *settings, *ranks, seed, *returns, _estimated(run), logged, steps, speed]


def _estimated(run: FoundRun) -> str:
    if run.estimate is None:
        return _MISSING
    value, low, high = run.estimate
    interval = "" if low is None or high is None else f" [{significant(low)}, {significant(high)}]"
    return f"{significant(value)}{_DOUBTFUL if run.estimate_is_doubtful else ''}{interval}"


def _print_lines(heads: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    """Print each run on several lines of `name value` pairs that fit the width."""
    for row in rows:
        console.print(Text.assemble((row[0], "bold"), "  ", _colored(row[1])), soft_wrap=True)
        line = ""
        for head, cell in zip(heads[2:], row[2:], strict=True):
            if cell == _MISSING:
                continue
            word = f"{head} {cell}"
            if line and len(line) + len(word) + 4 > console.width:
                console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
                line = ""
            line += f", {word}" if line else word
        if line:
            console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


def _subject(runs: Sequence[FoundRun]) -> str:
    """One line with what all runs have in common."""
    line = counted(len(runs), "run")
    for word, name in (("of", "task"), ("from", "data"), ("with", "algo")):
        values = {str(run.settings.get(name)) for run in runs}
        if len(values) == 1 and (value := values.pop()) != "None":
            line += f" {word} {value}"
    return line


def _notes(runs: Sequence[FoundRun]) -> Iterator[str]:
    if any(run.return_from == "training" for run in runs):
        yield TRAINING_NOTE
    if any(run.estimate for run in runs):
        yield (
            "estimate: what the log says of the policy's discounted return (weighted_sequential_dr), with interval; "
            "lockstep offline evaluate RUN says what to think of it"
        )
    if any(run.estimate_is_doubtful for run in runs):
        yield f"{_DOUBTFUL} not reliable: lockstep offline evaluate RUN says why"
    if any(run.logged is not None for run in runs):
        yield "logged: mean discounted return of the log; last and best return are not discounted"
    for run in runs:
        if run.error and run.status in ("failed", DAMAGED):
            verb = "is damaged" if run.status == DAMAGED else "failed"
            yield f"{run.path} {verb}: {' '.join(str(run.error).split())}"
        elif run.status == "cut short":
            continuing = f"lockstep train --resume {shlex.quote(str(run.path))} continues it"
            if is_own_loop(run.path):
                continuing = "its script can continue from its newest checkpoint"
            has_checkpoint = any((run.path / FOLDER).glob("step_*"))
            yield f"{run.path} ended without a result; {continuing if has_checkpoint else 'it left no checkpoint'}"


def _time_notes(runs: Sequence[FoundRun]) -> Iterator[str]:
    """What would make the runs faster: one line for runs with the same largest phase and advice."""
    alike: dict[tuple[str, str], list[tuple[FoundRun, Bottleneck]]] = {}
    stragglers: list[str] = []
    for run in runs:
        time_use = read_time_use(run)
        if (found := bottleneck(time_use)) is not None:
            alike.setdefault((found.what, found.helps), []).append((run, found))
        if (slowest := straggler(time_use)) is not None:
            stragglers.append(f"{run.path}: {slowest}")
    for members in alike.values():
        names = ", ".join(str(run.path) for run, _ in members[:_NAMED_RUNS])
        more = f" and {len(members) - _NAMED_RUNS} more" if len(members) > _NAMED_RUNS else ""
        yield f"{names}{more}: {sentence_of([found for _, found in members])}"
    yield from stragglers[:_NAMED_RUNS]


def _time_json(run: FoundRun) -> dict[str, Any]:
    time_use = read_time_use(run)
    found = bottleneck(time_use)
    return {"phases_s": dict(time_use.phases) or None, "advice": None if found is None else found.sentence}


def _colored(cell: str) -> Text:
    return Text(cell, style=STATUS_COLORS.get(cell, ""))
