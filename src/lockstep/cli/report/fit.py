"""Fit the cost model (`lockstep.preflight.cost_model`) to measurements, and cross-validate it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from lockstep.errors import ConfigError
from lockstep.preflight.cost_model import PARTS, Costs, Layout, Work, amounts_of, predict, transfer_s

_NAMES = tuple(field.name for field in fields(Costs))
# If all points have the same numbers of steps, epochs and gradient steps, the first three costs cannot be separated
# from those of a gradient step, and a prediction needs only their sum. If all hosts have the same number of ranks, or
# all worlds the same number of hosts, the fixed cost of a message cannot be separated from that per rank or host.
_MERGED = ("update", "step_row", "step_call", "local_message", "host_message")
_TOLERANCE = 1e-10  # relative
_MIN_DISTANCE_RATIO = 3.0  # between round trips, to separate the latency from the rest of a message's cost


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement."""

    name: str
    work: Work
    layout: Layout
    seconds: float
    """Of one update."""
    parts: tuple[float, float, float] | None = None
    """Seconds of an update in rollout, learning and messages, if known."""
    subject: str = ""
    """Config without counts: measurements of different subjects have different costs."""


def fit(points: Sequence[Point]) -> Costs:
    """Fit the costs: non-negative least squares of relative errors.

    Costs that no point depends on are 0. Unless some round trips are much longer than others, the latency of a message
    is taken as half a round trip.

    Raises:
        ConfigError: the points do not determine the cost of a call separately from that of a row.
    """
    distances = [p.layout.round_trip_s for p in points if p.layout.hosts > 1] or [0.0]
    known = {"round_trips": Costs().round_trips} if max(distances) <= _MIN_DISTANCE_RATIO * min(distances) else {}
    equations = [equation for point in points for equation in _equations(point, known)]
    matrix, right = np.array([e[0] for e in equations]), np.array([e[1] for e in equations])
    paid = [i for i, name in enumerate(_NAMES) if name not in known and matrix[:, i].any()]
    for name in _MERGED:
        rest = [i for i in paid if _NAMES[i] != name]
        if _rank(matrix[:, rest]) == _rank(matrix[:, paid]):
            paid = rest
    if _rank(matrix[:, paid]) < len(paid):
        raise ConfigError(
            f"{len(points)} measurements of one size do not tell what a call costs from what a row costs; "
            "measure also with other numbers of environments per rank, such as a quarter of num_envs"
            + (", and with another batch_size" if any(point.work.more_steps for point in points) else "")
        )
    values = non_negative(matrix[:, paid], right)
    return Costs(**known | {_NAMES[i]: float(value) for i, value in zip(paid, values, strict=True)})


def held_out(points: Sequence[Point]) -> list[tuple[Point, float | None]]:
    """Leave-one-out prediction of each point, in seconds per update; None if the others do not suffice.

    Points of the same work and layout are left out together.
    """
    found: list[tuple[Point, float | None]] = []
    for point in points:
        others = [other for other in points if _kind(other) != _kind(point)]
        try:
            needed = {name for name, amount in amounts_of(point.work, point.layout).items() if amount}
            paid = {name for o in others for name, amount in amounts_of(o.work, o.layout).items() if amount}
            enough = needed - {"round_trips"} <= paid
            seconds = predict(fit(others), point.work, point.layout).seconds if others and enough else None
        except ConfigError:
            seconds = None
        found.append((point, seconds))
    return found


def _kind(point: Point) -> tuple[object, ...]:
    return point.work, point.layout.ranks, point.layout.hosts, point.layout.cores, f"{point.layout.round_trip_s:.0e}"


def _equations(point: Point, known: dict[str, float]) -> Iterable[tuple[list[float], float]]:
    """One equation for an update, or one for each of its parts, divided by the time of the update."""
    amounts, transfer = amounts_of(point.work, point.layout), transfer_s(point.work, point.layout)
    parts = zip(PARTS.values(), point.parts, strict=True) if point.parts else [(_NAMES, point.seconds)]
    for names, seconds in parts:
        rest = seconds - sum(known[name] * amounts[name] for name in known if name in names)
        rest -= transfer if "host_message" in names else 0.0
        row = [amounts[name] if name in names and name not in known else 0.0 for name in _NAMES]
        yield [value / point.seconds for value in row], max(rest, 0.0) / point.seconds


def _rank(matrix: np.ndarray) -> int:
    """Rank of the matrix: the number of costs that it determines."""
    return int(np.linalg.matrix_rank(matrix / np.abs(matrix).max(0), tol=1e-3))


def non_negative(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Non-negative least squares by the active-set method of Lawson and Hanson, 1974."""
    scale = np.linalg.norm(matrix, axis=0)
    matrix, count = matrix / scale, matrix.shape[1]
    values, free = np.zeros(count), np.zeros(count, bool)
    for _ in range(10 * count):  # a bound; it converges in far fewer
        slope = np.where(free, -np.inf, matrix.T @ (right - matrix @ values))
        if slope.max() <= _TOLERANCE * np.linalg.norm(right):
            break
        free[slope.argmax()] = True
        while True:
            ordinary = np.zeros(count)
            ordinary[free] = np.linalg.lstsq(matrix[:, free], right, rcond=None)[0]
            below = free & (ordinary <= 0)
            if not below.any():
                break
            part = (values[below] / (values[below] - ordinary[below])).min()
            values = values + part * (ordinary - values)
            free &= values > _TOLERANCE * values.max()
            values[~free] = 0.0
        values = ordinary
    return values / scale
