"""Pictures of the rows of learning.py: of each task its evaluations, one line for each algorithm and library.

A line is the interquartile mean over seeds, with its bootstrap interval and the seeds behind it. Of several commands of
one algorithm it is the one with most seeds. A run that was solved keeps its last value. Runs with a single evaluation
have no curve.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lockstep.cli.report.page import page
from lockstep.cli.report.page.chart import Line, line_chart
from lockstep.record.score_statistics import Floats, bootstrap_interval, interquartile_mean

STYLE = Path(page.__file__).with_name("style.css")


def curves(rows: list[dict], libraries: Mapping[str, str]) -> dict[str, dict[str, list[dict]]]:
    """By task, then by label of the line: the runs on one rank of the command with most seeds."""
    found: dict[str, dict[str, dict[tuple, list[dict]]]] = {}
    for row in rows:
        if row["ranks"] == 1 and len(row["curve"]) > 1:
            label = " ".join(filter(None, [row["algo"].upper(), libraries.get(row["library"])]))
            of_label = found.setdefault(row["target"], {}).setdefault(label, {})
            of_label.setdefault(tuple(row["changes"]), []).append(row)
    return {
        task: {label: max(of_label.values(), key=len) for label, of_label in sorted(labels.items())}
        for task, labels in sorted(found.items())
    }


def line(label: str, runs: list[dict], style: int) -> Line:
    """The runs as a line of the chart, on the steps of the longest."""
    evaluations = [np.array(run["curve"], np.float64).T for run in runs]
    x: Floats = max((steps for steps, _ in evaluations), key=len)
    values = np.array([np.interp(x, steps, returns) for steps, returns in evaluations])
    low, high = bootstrap_interval([values])
    several = len(runs) > 1
    return Line(
        label=f"{label} ({len(runs)} seed{'s' if several else ''})",
        x=x,
        y=interquartile_mean(values),
        style=style,
        low=low if several else None,
        high=high if several else None,
        behind=[(steps, returns) for steps, returns in evaluations] if several else (),
    )


def picture(task: str, labels: dict[str, list[dict]]) -> str:
    """The chart as a file of its own, with the style sheet of the report's page."""
    lines = [line(label, runs, i) for i, (label, runs) in enumerate(labels.items())]
    description = "Interquartile mean over seeds of the mean return of an evaluation, with a 95% bootstrap band."
    chart = line_chart(task, description, ("environment steps", "return"), lines)
    head, body = chart.split(">", 1)
    size = 'xmlns="http://www.w3.org/2000/svg" width="400"'
    return f"{head} {size}><style>{STYLE.read_text()}</style>{body}\n"


def write_pictures(rows: list[dict], folder: Path, libraries: Mapping[str, str]) -> None:
    """Write `folder/TASK.svg` for all tasks; `libraries` are names of what trained, if that was not Lockstep."""
    folder.mkdir(exist_ok=True)
    for task, labels in curves(rows, libraries).items():
        name = task.rpartition("/")[2]  # without lockstep/
        (folder / f"{name}.svg").write_text(picture(task, labels))
