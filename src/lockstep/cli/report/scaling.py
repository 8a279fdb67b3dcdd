"""The text of `lockstep report --predict`: the fitted cost model, its error, and predictions for more ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from lockstep.cli.report.fit import Point, fit, held_out
from lockstep.cli.report.load import FEWEST_UPDATES
from lockstep.errors import ConfigError
from lockstep.preflight.cost_model import Costs, Layout, Work, amounts_of, predict
from lockstep.record.text import aligned, counted

PREDICTED_RANKS = (8, 16, 32, 64, 128, 256, 512, 1024)
"""Numbers of ranks that are predicted."""

_MIN_ENVS = 4  # per shard, for exact results: see `World.shard_warnings`


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to predict; None: as measured."""

    ranks_per_host: int = 8
    envs_per_rank: int | None = None
    """For weak scaling."""
    num_envs: int | None = None
    """For strong scaling."""
    cores: float | None = None
    round_trip_s: float | None = None
    bandwidth: float | None = None


def predicted(points: Sequence[Point], notes: Sequence[str], target: Target) -> str:
    """The complete text.

    Raises:
        ConfigError: the points do not suffice; names the runs to add.
    """
    _check(points, notes, target)
    costs = fit(points)
    sections = [
        [f"note: {note}" for note in notes],
        _prices(costs, points),
        _accuracy(costs, points),
        *_predictions(costs, points, target),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section)


def _check(points: Sequence[Point], notes: Sequence[str], target: Target) -> None:
    told = f" ({'; '.join(notes)})" if notes else ""
    if not points:
        raise ConfigError(
            f"there is nothing to predict from{told}; make runs with at least {FEWEST_UPDATES} updates between their "
            "first and last log line"
        )
    wanted: list[str] = []
    if len({p.work.num_envs / p.layout.ranks for p in points}) < 2:
        envs = points[0].work.num_envs
        wanted.append(f"one of another size (--set num_envs={max(envs // 4, 4)} or {4 * envs})")
    if target.ranks_per_host > 1 and all(p.layout.ranks_per_host == 1 for p in points):
        wanted.append("one with several ranks on a host (--ranks 2)")
    if (
        max(PREDICTED_RANKS) > target.ranks_per_host
        and all(p.layout.hosts == 1 for p in points)
        and not target.round_trip_s
    ):
        wanted.append("one on two hosts (--nnodes 2), or give the round trip between hosts (--round-trip-ms)")
    if wanted:
        raise ConfigError(
            f"{counted(len(points), 'measurement')} cannot tell what more ranks cost{told}; "
            f"add a run: {'; '.join(wanted)}"
        )


def _prices(costs: Costs, points: Sequence[Point]) -> Iterator[str]:
    paid = {name for p in points for name, amount in amounts_of(p.work, p.layout).items() if amount}
    yield "fitted costs"
    yield f"  stepping environments: {_time(costs.step_call)} per step, {_time(costs.step_row)} per environment"
    yield f"  a gradient step: {_time(costs.gradient_call)}, and {_time(costs.gradient_row)} per transition"
    yield f"  an update beside these: {_time(costs.update)}"
    if "local_message" in paid:
        yield f"  a message: {_time(costs.local_message)}, {_time(costs.local_rank)} for each other rank of the host"
        yield from _assumed({p.layout.ranks_per_host for p in points}, "rank of a host")
    trips = f"{costs.round_trips:.2f} round trips"
    if "host_message" in paid:
        own, each = _time(costs.host_message), _time(costs.host_peer)
        yield f"  a message between hosts: {own}, {each} for each other host, plus {trips} of latency"
        yield from _assumed({p.layout.hosts for p in points}, "host")
    else:
        yield f"  a message between hosts: not measured; only its latency is counted, {trips}"


def _assumed(counts: set[int], what: str) -> Iterator[str]:
    """A note if only one number was measured, so that the fixed cost of a message is unknown."""
    if len(several := counts - {1}) == 1:
        yield f"    measured with {several.pop()} only: each further {what} is assumed to cost the same"


def _accuracy(costs: Costs, points: Sequence[Point]) -> Iterator[str]:
    """Measured and predicted time of each point: fitted to all points, and to all others."""
    yield "measured against predicted, milliseconds per update"
    rows = [["", "measured", "fitted", "error", "held out", "error"]]
    errors: list[float] = []
    for point, unseen in held_out(points):
        fitted = predict(costs, point.work, point.layout).seconds
        row = [point.name, f"{point.seconds * 1e3:.2f}", f"{fitted * 1e3:.2f}", _error(fitted, point.seconds)]
        if unseen is None:
            row += ["-", "no other like it"]
        else:
            errors.append(abs(unseen / point.seconds - 1))
            row += [f"{unseen * 1e3:.2f}", _error(unseen, point.seconds)]
        rows.append(row)
    yield from aligned(rows)
    if errors:
        yield (
            f"held-out error: median {median(errors):.0%}, largest {max(errors):.0%} "
            f"({len(errors)} of {len(points)} measurements, each predicted from the others)"
        )
    else:
        yield "held-out error: unknown: too few measurements to leave one out"


def _predictions(costs: Costs, points: Sequence[Point], target: Target) -> Iterator[list[str]]:
    first = points[0]
    between = [p.layout for p in points if p.layout.hosts > 1]
    known = [layout.bandwidth for layout in between if layout.bandwidth]
    layout = Layout(
        ranks=1,
        cores=target.cores,
        round_trip_s=target.round_trip_s or (median(x.round_trip_s for x in between) if between else 0.0),
        bandwidth=target.bandwidth or min(known, default=None),
    )
    per_rank = target.envs_per_rank or first.work.num_envs / first.layout.ranks
    work = replace(first.work, num_shards=None)
    apart = f"ranks per host: {target.ranks_per_host}, round trip between hosts: {_time(layout.round_trip_s)}, "
    apart += f"bandwidth: {layout.bandwidth * 8 / 1e9:.3g} Gbit/s" if layout.bandwidth else "bandwidth: not counted"
    beyond = "extrapolated far beyond the measurements; waiting for stragglers is not modelled"
    yield [f"predicted; {apart}", beyond]
    weak = [(ranks, round(per_rank * ranks), round(per_rank)) for ranks in PREDICTED_RANKS]
    yield [f"weak scaling: {per_rank:g} environments per rank", *_scaled(costs, work, layout, target, weak)]
    whole = target.num_envs or max(first.work.num_envs, _MIN_ENVS * max(PREDICTED_RANKS))
    strong = [(ranks, whole, whole) for ranks in PREDICTED_RANKS if ranks <= whole]
    yield [f"strong scaling: {whole} environments in all", *_scaled(costs, work, layout, target, strong)]


def _scaled(
    costs: Costs, work: Work, layout: Layout, target: Target, layouts: Sequence[tuple[int, int, int]]
) -> Iterator[str]:
    """A table with a row for each `(ranks, environments, environments of the single rank for the efficiency)`."""
    rows = [["ranks", "hosts", "environments", "steps/s", "efficiency", "ms per update", "bound by"]]
    for ranks, num_envs, alone_envs in layouts:
        hosts = -(-ranks // target.ranks_per_host)
        found = predict(costs, work.with_envs(num_envs), replace(layout, ranks=ranks, hosts=hosts))
        alone = predict(costs, work.with_envs(alone_envs), Layout(ranks=1))
        efficiency = found.steps_per_second / (ranks * alone.steps_per_second)
        numbers = [f"{found.steps_per_second:.0f}", f"{efficiency:.0%}", f"{found.seconds * 1e3:.2f}"]
        rows.append([str(ranks), str(hosts), str(num_envs), *numbers, found.bound])
    return aligned(rows)


def _time(seconds: float) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e9:.3g} ns"


def _error(found: float, true: float) -> str:
    return f"{found / true - 1:+.0%}"
