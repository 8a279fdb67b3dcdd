"""Aggregate scores over seeds and tasks: interquartile mean, performance profile, stratified bootstrap intervals.

The statistics and the defaults are those of Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the
Statistical Precipice" (arXiv:2108.13264), and of its package rliable. Shapes: N runs, B bootstrap samples, `...` any
further axes, such as the points of a learning curve.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lockstep.world import stream

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
RESAMPLES = 2000


def interquartile_mean(scores: ArrayLike, axis: int = 0) -> Floats:
    """The mean of the middle half of the scores: `floor(N / 4)` are dropped at each end.

    Fewer than 4 scores are all kept. A NaN among the scores gives NaN.
    """
    array = np.sort(np.moveaxis(np.asarray(scores, dtype=np.float64), axis, 0), axis=0)
    number = len(array)
    if number == 0:
        raise ValueError("the interquartile mean needs at least one score")
    dropped = number // 4
    middle = array[dropped : number - dropped].mean(axis=0)
    nan = np.isnan(array).any(axis=0)  # sorted to the end, where it could be dropped
    return np.where(nan, np.nan, middle)


def median(scores: ArrayLike, axis: int = 0) -> Floats:
    """The median of the scores."""
    return np.asarray(np.median(np.asarray(scores, dtype=np.float64), axis=axis))


def performance_profile(scores: ArrayLike, thresholds: ArrayLike, axis: int = 0) -> Floats:
    """The fraction of runs whose score is greater than each threshold: `[..., thresholds]`."""
    array = np.moveaxis(np.asarray(scores, dtype=np.float64), axis, -1)
    limits = np.asarray(thresholds, dtype=np.float64)
    return (array[..., None, :] > limits[:, None]).mean(axis=-1)


def bootstrap_interval(
    strata: Sequence[ArrayLike],
    statistic: Callable[[Floats, int], Floats] = interquartile_mean,
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[Floats, Floats]:
    """The stratified percentile bootstrap interval of a statistic of all runs.

    Runs are drawn with replacement within each stratum, so that each sample has as many runs of each task as the data.
    The same arguments give the same interval.

    Args:
        strata: the scores `[N, ...]` of each task; one entry for a single task. The further axes must be equal.
        statistic: maps `[B, N, ...]` and the axis 1 to `[B, ...]`.
        confidence: of the interval, in (0, 1).
        resamples: bootstrap samples B.
        seed: of the draws.

    Returns:
        Lower and upper end, each `[...]`. With a single run in every stratum both equal the statistic: one run has no
        interval, and callers should show none.

    Raises:
        ValueError: there is no stratum, or one without a run.
    """
    arrays = [np.asarray(scores, dtype=np.float64) for scores in strata]
    if not arrays or any(len(scores) == 0 for scores in arrays):
        raise ValueError("a bootstrap interval needs at least one score in every stratum")
    random = stream(seed, "bootstrap of scores", len(arrays))
    drawn = [scores[random.integers(len(scores), size=(resamples, len(scores)))] for scores in arrays]
    resampled = statistic(np.concatenate(drawn, axis=1), 1)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(resampled, [tail, 1.0 - tail], axis=0)
    return np.asarray(low), np.asarray(high)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSummary:
    """Scores of the runs of one setting, aggregated."""

    count: int
    """Number of runs."""
    iqm: float
    """Interquartile mean."""
    interval: tuple[float, float] | None
    """Bootstrap interval of the interquartile mean; None with fewer than two runs."""
    median: float
    mean: float
    minimum: float
    maximum: float


def summarize(scores: Sequence[float], *, confidence: float = CONFIDENCE) -> ScoreSummary:
    """Aggregate the scores of runs that differ by their seed.

    Raises:
        ValueError: there is no score.
    """
    array = np.asarray(scores, dtype=np.float64)
    interval = None
    if len(array) > 1:
        low, high = bootstrap_interval([array], confidence=confidence)
        interval = float(low), float(high)
    return ScoreSummary(
        count=len(array),
        iqm=float(interquartile_mean(array)),
        interval=interval,
        median=float(median(array)),
        mean=float(array.mean()),
        minimum=float(array.min()),
        maximum=float(array.max()),
    )
