"""MAGIC: a blend of j-step returns that minimizes the estimated mean squared error.

Thomas and Brunskill, 2016, arXiv:1604.00923, section 7. Shapes: B bootstrap samples, J returns.
"""

import numpy as np
from numpy.typing import NDArray

from lockstep.data.packages import import_optional
from lockstep.estimators.trajectories import Floats

MAX_RETURNS = 25
"""The maximum number of returns to blend."""
_CONFIDENCE = 0.9
"""The level of the last return's interval."""
_RIDGE = 1e-9
"""Added to the diagonal, relative to its mean, so that the blend of equal returns is unique."""


def steps_to_blend(longest: int) -> list[int]:
    """The values of j, from -1 (the model alone) to the last step, spaced geometrically."""
    steps = np.geomspace(1, longest + 1, min(MAX_RETURNS, longest + 1)).round().astype(int)
    return [int(j) - 2 for j in np.unique([1, *steps, longest + 1])]


def blend(returns: Floats, resampled: Floats) -> NDArray[np.float64]:
    """Nonnegative weights x [J] that sum to 1 and minimize x' (Omega + b b') x.

    Omega is the covariance of the returns over bootstrap samples [B, J]. b is the distance of each return [J] from the
    bootstrap interval of the last one, which uses all logged steps and is a consistent estimate. The interval is
    widened to hold that return itself.
    """
    scipy_optimize = import_optional("scipy.optimize", "offline")
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(resampled[:, -1], [tail, 1 - tail])
    bias = returns - np.clip(returns, min(low, returns[-1]), max(high, returns[-1]))
    error = np.atleast_2d(np.cov(resampled.T)) + np.outer(bias, bias)
    scale = float(np.trace(error)) / len(error)
    if scale == 0.0:  # all returns are equal and constant
        return np.full(len(returns), 1.0 / len(returns))
    # The minimizer of x' A x on the simplex is y / sum(y), where y >= 0 minimizes y' A y / 2 - sum(y): both problems
    # have the same optimality conditions up to a scale. With A = L L' the second is nonnegative least squares.
    lower = np.linalg.cholesky(error / scale + _RIDGE * np.eye(len(error)))
    y = np.asarray(scipy_optimize.nnls(lower.T, np.linalg.solve(lower, np.ones(len(error))))[0], np.float64)
    return y / y.sum()
