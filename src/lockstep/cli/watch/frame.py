"""The screen of `lockstep watch`."""

from collections.abc import Sequence
from textwrap import wrap

from rich.console import Group, RenderableType
from rich.text import Text

from lockstep.cli.runs import age
from lockstep.cli.terminal import STATUS_COLORS, plain_table
from lockstep.cli.watch.chart import draw
from lockstep.cli.watch.watched_run import ESTIMATE, RankTime, WatchedRun
from lockstep.distributed.timers import PHASES
from lockstep.record.text import counted, duration, grouped, significant

KEYS = "q quit   n/p next, previous curve   x steps or seconds   1 return"
_FEWEST_ROWS = 5
"""Lines of the smallest chart; a terminal without room for it shows the value alone."""
_MOST_RANKS = 8
"""Ranks that are shown one by one."""
_SILENT_S = 60.0
"""Time without a line after which the screen shows it."""


def frame(run: WatchedRun, name: str | None, width: int, height: int, *, by_seconds: bool, keys: bool) -> Group:
    """The screen of one moment.

    Args:
        run: after `update`.
        name: the curve; None: the first that there is.
        width: of the screen, in characters.
        height: of the screen, in lines.
        by_seconds: whether the curve is drawn against seconds, not steps.
        keys: whether to show the keys.
    """
    if not run.exists:
        return Group(Text(f"{run.path}: waiting for the run to begin"), *_keys(keys))
    above = [*_head(run), Text("")]
    times = run.rank_times()
    below: list[RenderableType] = [Text(""), *_ranks(run, times, width), Text(_checkpoints(run)), *_keys(keys)]
    table = len(_chosen(times)) + 1 if times else 0
    free = height - table - sum(_height(line, width) for line in [*above, *below] if isinstance(line, Text))
    return Group(*above, *_curve(run, name, width, free, by_seconds=by_seconds), *below)


def _height(line: Text, width: int) -> int:
    """The lines that a text takes."""
    return max(1, len(wrap(line.plain, width)))


def _keys(shown: bool) -> list[Text]:
    return [Text(KEYS, style="dim")] if shown else []


def _head(run: WatchedRun) -> list[Text]:
    config = run.config
    subject = config.get("task") or config.get("data") or run.summary.get("task") or "a run"
    what = [str(subject), *(str(config[key]) for key in ("algo", "ml_framework") if config.get(key))]
    ranks = run.num_ranks
    if ranks:
        what.append(counted(ranks, "rank"))
    if config.get("seed") is not None:
        what.append(f"seed {config['seed']}")
    status = Text(run.status, style=STATUS_COLORS.get(run.status, ""))
    lines = [Text.assemble((str(run.path), "bold"), "  ", status), Text(", ".join(what)), Text(_progress(run))]
    returns = _returns(run)
    if returns:
        lines.append(Text(returns))
    if run.problem:
        lines.append(Text(run.problem, style="red"))
    return lines


def _progress(run: WatchedRun) -> str:
    unit = run.unit
    parts = [f"{grouped(run.step)} {unit}"]
    if run.total_steps:
        parts = [f"{grouped(run.step)} / {grouped(run.total_steps)} {unit} ({min(run.step / run.total_steps, 1):.0%})"]
    if run.steps_per_second is not None:
        parts.append(f"{grouped(run.steps_per_second)} {unit}/s")
    if run.elapsed_s:
        parts.append(f"{age(run.elapsed_s)} of training")
    if run.eta_s is not None:
        parts.append(f"ETA {duration(run.eta_s)}")
    if run.running and run.silent_s is not None and run.silent_s > _SILENT_S:
        parts.append(f"nothing written for {age(run.silent_s)}")
    return "   ".join(parts)


def _returns(run: WatchedRun) -> str:
    parts: list[str] = []
    if run.last_evaluation is not None:
        step, mean, episodes = run.last_evaluation
        parts.append(f"evaluation at step {grouped(step)}: {significant(mean)} over {counted(episodes, 'episode')}")
    training = run.latest("episode/return_mean_100")
    if training is not None:
        parts.append(f"training return {significant(training)}")
    estimate = run.latest(ESTIMATE)
    if estimate is not None:
        parts.append(f"estimate from logged data {significant(estimate)}")
    if run.solved_at_step is not None:
        parts.append(f"solved at step {grouped(run.solved_at_step)}")
    return "   ".join(parts)


def _curve(run: WatchedRun, name: str | None, width: int, height: int, *, by_seconds: bool) -> list[Text]:
    names = run.names()
    chosen = name if name in names else run.first_name()
    if chosen is None:
        return [Text("no metrics yet")]
    curve = run.curve(chosen)
    position = f" ({names.index(chosen) + 1} of {len(names)})"
    last = f": {significant(curve.values[-1])}" if curve.values else ""
    xs, unit = (curve.seconds, "s") if by_seconds else (curve.steps, run.unit)
    lines = draw(xs, curve.values, width, height - 1, unit) if height > _FEWEST_ROWS else []
    return [Text.assemble((chosen, "bold"), last, (position, "dim")), *(Text(line, style="cyan") for line in lines)]


def _ranks(run: WatchedRun, times: Sequence[RankTime], width: int) -> list[RenderableType]:
    """A row per rank with its phases, and which rank the others wait for."""
    if not times:
        return []
    several = len({one.host for one in times}) > 1
    hosts = max(len(one.host or "") for one in times) + 2 if several else 0
    on_gpu = any(one.device_memory for one in times)
    taken = hosts + (len("  12345 MiB") if on_gpu else 0)
    shown = _phases(times, width - taken - (0 if run.devices_per_process == 1 else len("process") - len("rank")))
    slowest = run.slowest(times)
    table = plain_table("dim")
    unit = "rank" if run.devices_per_process == 1 else "process"
    for head in (unit, *(["host"] if several else []), *shown, "memory", *(["GPU"] if on_gpu else [])):
        table.add_column(head, no_wrap=True, justify="right")
    for one in _chosen(times):
        memory = [one.memory, *([one.device_memory] if on_gpu else [])]
        host = [one.host or "-"] if several else []
        cells = [str(one.rank), *host, *(f"{one.shares[phase]:.0%}" for phase in shown)]
        cells += ["-" if not size else f"{size / 2**20:.0f} MiB" for size in memory]
        table.add_row(*cells, style="yellow" if one is slowest else "")
    notes: list[RenderableType] = [table]
    if slowest is not None:
        others = [one.shares["wait"] for one in times if one is not slowest]
        mean = sum(others) / len(others)
        notes.append(
            Text(
                f"slowest: {unit} {slowest.rank}; it waits {slowest.shares['wait']:.0%} of the time, others {mean:.0%}"
            )
        )
    elif len(times) > _MOST_RANKS:
        units = "ranks" if unit == "rank" else "processes"
        notes.append(Text(f"{_MOST_RANKS} of {len(times)} {units}, those that wait least"))
    return notes


def _phases(times: Sequence[RankTime], width: int) -> list[str]:
    """The phases that take time; on a narrow screen those that take most."""
    shown = [phase for phase in PHASES if any(one.shares[phase] >= 0.005 for one in times)]
    others = len("rank") + len("  1234 MiB")
    while len(shown) > 1 and others + sum(2 + max(len(phase), len("100%")) for phase in shown) > width:
        shown.remove(min(shown, key=lambda phase: sum(one.shares[phase] for one in times)))
    return shown


def _chosen(times: Sequence[RankTime]) -> list[RankTime]:
    """The ranks that are shown: all, or of many those that wait least."""
    if len(times) <= _MOST_RANKS:
        return list(times)
    return sorted(times, key=lambda one: one.shares["wait"])[:_MOST_RANKS]


def _checkpoints(run: WatchedRun) -> str:
    found = run.checkpoints()
    if not found:
        return "no checkpoint yet" if run.running else "no checkpoint"
    step, seconds = found[-1]
    return f"checkpoints: {len(found)}, the newest at step {grouped(step)}, {age(seconds)} ago"
