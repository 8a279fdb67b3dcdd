"""Confidence intervals by drawing trajectories with replacement.

Shapes: B sets of draws, G groups of trajectories.
"""

import math
from statistics import NormalDist

import numpy as np

from lockstep.estimators.trajectories import Floats
from lockstep.world import stream

_NORMAL = NormalDist()


def draws(groups: int, number: int, seed: int) -> Floats:
    """How often each group was drawn [number, G]: G draws with replacement in each set."""
    random = stream(seed, "bootstrap", groups)
    return random.multinomial(groups, np.full(groups, 1.0 / groups), size=number).astype(np.float64)


def interval(resampled: Floats, groups: int, confidence: float) -> tuple[float, float]:
    """The expanded percentile interval (Hesterberg, 2015, arXiv:1411.5279, section 4.1.2).

    Percentiles of the resampled estimates, a little farther out than `confidence` says: draws from n groups vary less
    than n new groups would, by sqrt((n - 1) / n), and know the variance only as Student's t does. Of the intervals that
    were measured (percentile, BCa, Student's t, Hall's) none covers more often where weights have a finite variance;
    `benchmarks/offline_estimators.py` measures it.

    Args:
        resampled: [B], of draws; those that are NaN do not count.
        groups: how many were drawn from; with fewer than two nothing can be said, and the ends are infinite.
        confidence: 0.95, say.
    """
    counted = resampled[~np.isnan(resampled)]
    if groups < 2 or len(counted) < 2:
        return -math.inf, math.inf
    tail = _NORMAL.cdf(-math.sqrt(groups / (groups - 1)) * _student((1 + confidence) / 2, groups - 1))
    low, high = np.quantile(counted, [tail, 1 - tail])
    return float(low), float(high)


def _student(probability: float, freedom: int) -> float:
    """A quantile of Student's t (Abramowitz and Stegun, 26.7.5; within 1% from 5 degrees of freedom on)."""
    z = _NORMAL.inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom ** (k + 1) for k, term in enumerate(terms))
