"""Statistics of scores against values computed by hand."""

import math
from itertools import product

import numpy as np
import pytest

from lockstep.record.score_statistics import (
    bootstrap_interval,
    interquartile_mean,
    median,
    performance_profile,
    summarize,
)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 2.0, 9.0], 4.0),  # fewer than 4: all are kept
        ([100.0, 1.0, 3.0, -50.0], 2.0),  # the middle two
        ([5.0, 1.0, 2.0, 3.0, 1000.0], 10.0 / 3.0),  # one of five is dropped at each end
        ([0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 99.0, 99.0], 2.5),  # two of eight at each end
    ],
)
def test_interquartile_mean_is_the_mean_of_the_middle_half(scores: list[float], expected: float):
    assert interquartile_mean(scores) == pytest.approx(expected, rel=1e-15)


def test_interquartile_mean_takes_any_axis_and_keeps_nan():
    table = np.array([[100.0, 1.0, 3.0, -50.0], [1.0, 1.0, 1.0, math.nan]])
    assert interquartile_mean(table, axis=1)[0] == 2.0
    assert math.isnan(interquartile_mean(table, axis=1)[1])
    assert interquartile_mean(table[:1], axis=0).tolist() == [100.0, 1.0, 3.0, -50.0]


def test_performance_profile_is_the_fraction_above_each_threshold():
    assert performance_profile([1.0, 2.0, 2.0, 5.0], [0.0, 1.0, 2.0, 5.0]).tolist() == [1.0, 0.75, 0.25, 0.0]


def test_bootstrap_interval_has_the_quantiles_of_the_exact_distribution():
    """All 27 samples of three scores, counted: the mean is 1 once, 4/3 three times, ..., 3 once."""
    scores = [1.0, 2.0, 3.0]
    exact = sorted(sum(sample) / 3 for sample in product(scores, repeat=3))
    low, high = bootstrap_interval([scores], lambda drawn, axis: drawn.mean(axis), confidence=0.8, resamples=20_000)
    assert float(low) == pytest.approx(exact[int(0.1 * 27)])  # 4/3: 1 of 27 lies below, 4 of 27 up to it
    assert float(high) == pytest.approx(exact[int(0.9 * 27)])


def test_bootstrap_draws_within_each_stratum():
    """Two tasks of one run each: drawing over both would give other means than 5."""
    assert [float(end) for end in bootstrap_interval([[0.0], [10.0]])] == [5.0, 5.0]
    low, high = bootstrap_interval([[0.0, 10.0]])
    assert (float(low), float(high)) == (0.0, 10.0)


def test_bootstrap_of_curves_draws_whole_runs():
    """The points of a curve belong together: where run 0 leads by 1 everywhere, so do the ends of the band."""
    curves = np.array([[1.0, 11.0, 21.0], [0.0, 10.0, 20.0], [2.0, 12.0, 22.0]])
    low, high = bootstrap_interval([curves], median)
    assert np.diff(low).tolist() == [10.0, 10.0] and np.diff(high).tolist() == [10.0, 10.0]
    assert bootstrap_interval([curves], median)[0].tolist() == low.tolist()  # the same draws


def test_summary_of_one_run_has_no_interval():
    assert summarize([3.0]).interval is None
    found = summarize([5.0, 1.0, 2.0, 3.0, 1000.0])
    assert (found.count, found.median, found.minimum, found.maximum) == (5, 3.0, 1.0, 1000.0)
    assert found.mean == pytest.approx(202.2) and found.iqm == pytest.approx(10 / 3)
    assert found.interval is not None and 1.0 <= found.interval[0] < found.iqm < found.interval[1] <= 1000.0


def test_no_scores_are_refused():
    with pytest.raises(ValueError, match="at least one score"):
        interquartile_mean([])
    with pytest.raises(ValueError, match="every stratum"):
        bootstrap_interval([[1.0], []])
