"""The section of the page on where time went."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from lockstep.cli.report.page.chart import NUM_STYLES, Stack, stack_chart
from lockstep.cli.report.page.groups import Group
from lockstep.cli.report.page.load import PageRun
from lockstep.cli.report.time_use import Bottleneck, bottleneck, rank_name, sentence_of, straggler
from lockstep.distributed.timers import PHASES

_MEANINGS = {
    "env": "stepping environments",
    "act": "choosing actions",
    "learn": "gradient steps",
    "sync": "exchanging numbers with other ranks",
    "wait": "waiting for other ranks",
    "evaluate": "evaluation episodes",
    "checkpoint": "saving the state",
    "other": "everything else",
}
_MAX_RANK_CHARTS = 8
_MAX_RANK_BARS = 32
_MAX_SENTENCES = 12
_NAMED_GROUPS = 3
"""Groups that a sentence about several names."""


def time_section(groups: Sequence[Group]) -> dict[str, Any]:
    """Phases of each group, of each rank of some runs, and what would help."""
    stacks: list[Stack] = []
    alike: dict[tuple[str, str], list[tuple[str, Bottleneck]]] = {}
    rank_charts: list[dict[str, Any]] = []
    for group in groups:
        runs = [run for run in group.runs if run.time.phases]
        if not runs:
            continue
        seconds = np.array([[run.time.phases.get(phase, 0.0) for phase in PHASES] for run in runs])
        shares = (seconds / seconds.sum(axis=1, keepdims=True)).mean(axis=0)
        stacks.append(Stack(label=group.label, parts=shares.tolist()))
        for run in runs:
            if (largest := bottleneck(run.time)) is not None:
                alike.setdefault((largest.what, largest.helps), []).append((group.label, largest))
        several = [run for run in runs if _rank_stacks(run)]
        if several and len(rank_charts) < _MAX_RANK_CHARTS:
            rank_charts.append(_rank_chart(several[0]))
    chart = None
    if stacks:
        shown_stacks = stacks[: 2 * NUM_STYLES]
        text = "Share of training time by phase, mean over ranks and runs."
        chart = Markup(stack_chart("Where time went", text, "% of time", PHASES, shown_stacks, percent=True))
    advice: list[tuple[str, str]] = []
    for members in alike.values():
        named = list(dict.fromkeys(label for label, _ in members))
        labels = "; ".join(named[:_NAMED_GROUPS])
        if len(named) > _NAMED_GROUPS:
            labels += f"; and {len(named) - _NAMED_GROUPS} more"
        found = sentence_of([one for _, one in members])
        advice.append((found, "All groups" if len(named) == len(stacks) > 1 else labels))
    return {
        "chart": chart,
        "phases": PHASES,
        "meanings": "; ".join(f"{phase}: {_MEANINGS[phase]}" for phase in PHASES),
        "rows": [(stack.label, [f"{100 * share:.1f}" for share in stack.parts]) for stack in stacks],
        "advice": advice[:_MAX_SENTENCES],
        "ranks": rank_charts,
    }


def _rank_stacks(run: PageRun) -> list[Stack]:
    """A bar for each rank, or process of several devices, if the run has several."""
    if len(run.time.phases_of_ranks) < 2:
        return []
    return [
        Stack(label=rank_name(run.time, i), parts=[phases[phase] for phase in PHASES])
        for i, phases in enumerate(run.time.phases_of_ranks[:_MAX_RANK_BARS])
    ]


def _rank_chart(run: PageRun) -> dict[str, Any]:
    stacks = _rank_stacks(run)
    unit, units = ("process", "processes") if run.time.by_process else ("rank", "ranks")
    text = f"Seconds in each phase on each of {len(run.time.phases_of_ranks)} {units} of {run.name}."
    chart = stack_chart(f"{units.capitalize()} of {run.name}", text, "seconds", PHASES, stacks)
    left_out = len(run.time.phases_of_ranks) - len(stacks)
    return {
        "chart": Markup(chart),
        "straggler": straggler(run.time) or f"No straggler: the {units} waited about equally long.",
        "left_out": left_out,
        "unit": unit,
        "units": units,
        "rows": [(stack.label, [f"{part:.2f}" for part in stack.parts]) for stack in stacks],
    }
