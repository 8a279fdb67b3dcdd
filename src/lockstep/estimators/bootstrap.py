"""Bootstrap confidence intervals: trajectories are drawn with replacement.

Shapes: B bootstrap samples, G groups of trajectories.
"""

import math
from statistics import NormalDist

import numpy as np

from lockstep.estimators.trajectories import Floats
from lockstep.world import stream

_NORMAL = NormalDist()


def draws(groups: int, number: int, seed: int) -> Floats:
    """Draw bootstrap samples: how often each group is drawn [number, G], with G draws in each sample."""
    random = stream(seed, "bootstrap", groups)
    return random.multinomial(groups, np.full(groups, 1.0 / groups), size=number).astype(np.float64)


def interval(resampled: Floats, groups: int, confidence: float) -> tuple[float, float]:
    """The expanded percentile interval (Hesterberg, 2015, arXiv:1411.5279, section 4.1.2) of resampled estimates [B].

    It consists of percentiles that lie farther out than `confidence` alone implies: the bootstrap's standard deviation
    is too small by sqrt((n - 1) / n) for n groups, and the quantiles are those of Student's t since the variance is
    estimated. With weights of finite variance it covers at least as often as the percentile, BCa, Student's t and
    Hall's intervals (`benchmarks/offline_estimators.py`). NaN is ignored; with fewer than two groups the interval is
    infinite.
    """
    valid = resampled[~np.isnan(resampled)]
    if groups < 2 or len(valid) < 2:
        return -math.inf, math.inf
    tail = _NORMAL.cdf(-math.sqrt(groups / (groups - 1)) * _student_quantile((1 + confidence) / 2, groups - 1))
    low, high = np.quantile(valid, [tail, 1 - tail])
    return float(low), float(high)


def _student_quantile(probability: float, degrees: int) -> float:
    """A quantile of Student's t (Abramowitz and Stegun, 26.7.5), within 1% for 5 or more degrees of freedom."""
    z = _NORMAL.inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / degrees ** (k + 1) for k, term in enumerate(terms))
