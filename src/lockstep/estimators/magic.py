"""MAGIC: returns of j logged steps and the model's value behind them, blended for the least mean squared error.

Thomas and Brunskill, 2016, arXiv:1604.00923, section 7. Shapes: B bootstrap samples, J numbers of steps.
"""

import numpy as np
from numpy.typing import NDArray

from lockstep.data.packages import import_optional
from lockstep.estimators.trajectories import Floats

MOST_STEPS = 25
"""Returns to blend, at most."""
_CONFIDENCE = 0.9
"""Of the interval of the last return: what lies inside counts as unbiased."""
_RIDGE = 1e-9
"""Added to the diagonal, relative to its mean: returns that are all alike still have one best blend."""


def steps_to_blend(longest: int) -> list[int]:
    """The j, from -1 (the model alone) to the last row: closer together where less of the log's weight is lost."""
    places = np.geomspace(1, longest + 1, min(MOST_STEPS, longest + 1)).round().astype(int)
    return [int(j) - 2 for j in np.unique([1, *places, longest + 1])]


def blend(returns: Floats, resampled: Floats) -> NDArray[np.float64]:
    """Weights [J], none negative, that add up to 1 and minimize x' (Omega + b b') x.

    Omega is the covariance of the returns over bootstrap samples of trajectories; b how far each return lies outside
    the bootstrap interval of the last one, which is consistent.

    Args:
        returns: [J], the last one after all logged steps.
        resampled: [B, J], of bootstrap samples.
    """
    scipy_optimize = import_optional("scipy.optimize", "offline")
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(resampled[:, -1], [tail, 1 - tail])
    bias = returns - np.clip(returns, low, high)
    error = np.atleast_2d(np.cov(resampled.T)) + np.outer(bias, bias)
    scale = float(np.trace(error)) / len(error)
    if scale == 0.0:  # nothing varies and nothing disagrees
        return np.full(len(returns), 1.0 / len(returns))
    # On the simplex, x' A x is least where x = y / sum(y) and y >= 0 is least in y' A y / 2 - sum(y): scaling y by
    # x' A x turns the conditions of one into those of the other. That is least squares with A = L L', as scipy has it.
    lower = np.linalg.cholesky(error / scale + _RIDGE * np.eye(len(error)))
    y = np.asarray(scipy_optimize.nnls(lower.T, np.linalg.solve(lower, np.ones(len(error))))[0], np.float64)
    return y / y.sum()
