"""Fitting recovers what is known, and says how wrong it is on what it has not seen."""

import itertools
from dataclasses import asdict, replace

import numpy as np
import pytest

from lockstep.cli.report.fit import Point, fit, held_out, non_negative
from lockstep.errors import ConfigError
from lockstep.preflight.cost_model import Costs, Layout, Work, predict

TRUE = Costs(
    step_call=60e-6,
    step_row=3e-6,
    gradient_call=1.2e-3,
    gradient_row=1.5e-6,
    update=2e-3,
    local_message=60e-6,
    local_rank=20e-6,
    host_message=150e-6,
    host_peer=40e-6,
    round_trips=0.6,
)
LAYOUTS = [
    Layout(ranks=1),
    Layout(ranks=2),
    Layout(ranks=4, cores=2),
    *(Layout(ranks=ranks, hosts=2, round_trip_s=s) for ranks in (2, 4) for s in (1e-4, 1e-3, 5e-3)),
    Layout(ranks=4, hosts=4, round_trip_s=1e-3),
]


def work(num_envs, **changes):
    known = {"num_steps": 128, "replay_ratio": 4, "gradient_steps": 16, "num_bytes": 37_000}
    return Work(num_envs=num_envs, **known | changes)


def point(layout, done, costs=TRUE, *, parts=True, factor=1.0):
    found = predict(costs, done, layout)
    messages = found.local_messages + found.host_messages + found.transfer
    split = (found.rollout * factor, found.learning * factor, messages * factor)
    return Point(f"{layout.ranks}/{layout.hosts}", done, layout, found.seconds * factor, split if parts else None)


def grid(**how):
    sizes = [work(16), work(64), work(256), work(64, num_steps=32), work(32, replay_ratio=2, gradient_steps=16)]
    sizes += [work(32, replay_ratio=2, gradient_steps=8)]
    return [point(layout, size, **how) for layout in LAYOUTS for size in sizes]


@pytest.mark.parametrize("parts", [True, False])
def test_fit_recovers_known_costs(parts):
    assert asdict(fit(grid(parts=parts))) == pytest.approx(asdict(TRUE), rel=1e-3)


def test_fit_recovers_costs_from_noisy_points():
    noise = np.random.default_rng(0).normal(1.0, 0.03, 1000)
    points = [replace(p, seconds=p.seconds * f, parts=tuple(x * f for x in p.parts)) for p, f in zip(grid(), noise)]  # noqa: B905
    found = fit(points)
    for name in ("gradient_call", "gradient_row", "step_call", "step_row", "round_trips"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.15), name


def test_a_known_bandwidth_is_not_taken_for_something_else():
    layouts = [replace(x, bandwidth=1e7) if x.hosts > 1 else x for x in LAYOUTS]
    points = [point(layout, size) for layout in layouts for size in (work(16), work(64), work(64, gradient_steps=32))]
    assert asdict(fit(points)) == pytest.approx(asdict(TRUE), rel=1e-3)


def test_one_distance_leaves_the_way_at_half_a_round_trip():
    layouts = [Layout(ranks=1), Layout(ranks=2), Layout(ranks=2, hosts=2, round_trip_s=1e-3)]
    true = replace(TRUE, round_trips=0.5)
    found = fit([point(layout, size, true) for layout in layouts for size in (work(16), work(64))])
    assert found.round_trips == 0.5
    assert found.host_message == 0.0  # with two hosts alone nobody can tell it from the price of the other host
    assert found.host_peer == pytest.approx(true.host_message + true.host_peer, rel=1e-3)
    nearly = [replace(p, layout=replace(p.layout, round_trip_s=s)) for p in grid() for s in (1.0e-3, 1.1e-3)]
    assert fit([p for p in nearly if p.layout.hosts == 2] + grid()[:18]).round_trips == 0.5  # noise, not a distance


def test_non_negative_least_squares_is_optimal():
    """Against the best of the ordinary solutions on every subset of columns."""
    random = np.random.default_rng(1)
    for _ in range(30):
        matrix, right = random.random((12, 5)) - 0.2, random.random(12) - 0.3
        least = float(right @ right)
        for size in range(1, 6):
            for chosen in itertools.combinations(range(5), size):
                values = np.linalg.lstsq(matrix[:, chosen], right, rcond=None)[0]
                if values.min() >= 0:
                    least = min(least, float(np.square(matrix[:, chosen] @ values - right).sum()))
        found = non_negative(matrix, right)
        assert found.min() >= 0
        assert float(np.square(matrix @ found - right).sum()) == pytest.approx(least, rel=1e-9)


def test_inseparable_costs_are_merged():
    """Without parts, and with the same numbers of steps and epochs everywhere: sums of prices predict all the same."""
    points = [point(layout, work(n), parts=False) for layout in LAYOUTS for n in (16, 64)]
    target = point(Layout(ranks=16, hosts=4, round_trip_s=2e-3), work(1024))
    assert predict(fit(points), target.work, target.layout).seconds == pytest.approx(target.seconds, rel=1e-3)


def test_fitted_costs_are_not_negative():
    """Faster with more work, as noise has it: the best that is not absurd."""
    points = [point(Layout(ranks=1), work(16)), point(Layout(ranks=1), work(64), factor=0.2)]
    assert min(asdict(fit(points)).values()) >= 0


def test_points_of_one_size_are_refused():
    with pytest.raises(ConfigError, match="measure also with other numbers of environments per rank"):
        fit([point(Layout(ranks=1), work(16)), point(Layout(ranks=1), work(16))])


def test_unseen_points_are_predicted_from_the_others():
    for p, seconds in held_out(grid()):
        assert seconds == pytest.approx(p.seconds, rel=1e-3)


def test_points_that_others_do_not_determine_are_not_predicted():
    points = [point(Layout(ranks=1), size) for size in (work(16), work(64), work(256))]
    points.append(point(Layout(ranks=2), work(16)))
    assert [seconds is None for _, seconds in held_out(points)] == [False, False, False, True]


def test_repeated_points_are_held_out_together():
    """A kind that costs double is not predicted from its own repetition."""
    odd = point(Layout(ranks=1), work(1024), factor=2.0)
    points = [*(point(Layout(ranks=1), work(n)) for n in (16, 64, 256)), odd, replace(odd, name="again")]
    found = held_out(points)[-1][1]
    assert found == pytest.approx(odd.seconds / 2, rel=1e-3)
