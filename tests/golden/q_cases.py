"""What every backend's Q-learning must give: tables computed by hand, and the papers' formulas, in numpy."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

TABLES = json.loads((Path(__file__).parent / "q_learning.json").read_text())


def cases(table):
    """A decorator: the test once for each case of a table."""
    return pytest.mark.parametrize("case", TABLES[table], ids=[case["name"] for case in TABLES[table]])


def arrays(case, *names):
    """Columns of a case, float32."""
    return [np.array(case[name], np.float32) for name in names]


def random_distributions(rows, atoms, seed=0):
    """Probabilities [rows, atoms], rewards and discounts [rows] of which some end, on a support [atoms]."""
    stream = np.random.default_rng(seed)
    probability = stream.random((rows, atoms)).astype(np.float32) ** 4
    probability /= probability.sum(1, keepdims=True)
    reward = stream.normal(scale=4.0, size=rows).astype(np.float32)
    discount = np.where(stream.random(rows) < 0.3, 0.0, 0.99).astype(np.float32)
    return probability, reward, discount, np.linspace(-10.0, 10.0, atoms, dtype=np.float32)


def projection(probability, reward, discount, support):
    """Algorithm 1 of Bellemare et al. (2017), atom by atom, in float64; as printed, it loses the mass where l = u."""
    low, high = float(support[0]), float(support[-1])
    step = (high - low) / (len(support) - 1)
    projected = np.zeros(probability.shape)
    for row in range(len(probability)):
        for atom, p in zip(support, probability[row], strict=True):
            moved = min(max(float(reward[row]) + float(discount[row]) * float(atom), low), high)
            place = min(max((moved - low) / step, 0.0), len(support) - 1.0)
            lower, upper = math.floor(place), math.ceil(place)
            if lower == upper:
                projected[row, lower] += p
            else:
                projected[row, lower] += p * (upper - place)
                projected[row, upper] += p * (place - lower)
    return projected


def quantile_regression(quantiles, targets, kappa):
    """Equation 10 of Dabney et al. (2018), pair by pair, in float64."""
    count, loss = quantiles.shape[1], np.zeros(len(quantiles))
    for row in range(len(quantiles)):
        for i, theta in enumerate(quantiles[row]):
            for target in targets[row]:
                error = float(target) - float(theta)
                large = abs(error) > kappa
                cost = kappa * (abs(error) - kappa / 2) if large else error**2 / 2
                loss[row] += abs((i + 0.5) / count - (error < 0)) * cost / kappa / targets.shape[1]
    return loss
