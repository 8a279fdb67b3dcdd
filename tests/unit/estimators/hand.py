"""Two trajectories whose estimates were worked out by hand: gamma = 0.5, the first of two rows, the second of one."""

import numpy as np

from lockstep.estimators.estimates import clipping_thresholds
from lockstep.estimators.trajectories import Decisions, Predicted, discounts, summed

GAMMA = 0.5
OFFSETS = np.array([0, 2, 3])


def column(*values):
    return np.array(values, np.float64)[:, None]


def decisions(**changes):
    known = {
        "offsets": OFFSETS,
        "reward": column(1, 2, 4),
        "discount": discounts(OFFSETS, GAMMA),
        "ratio": np.array([2, 0.5, 1.5]),
        "predicted": Predicted(
            reward=column(0.5, 1, 3),
            policy_reward=column(0.8, 1.2, 2.5),
            q=column(1.5, 1, 3),
            value=column(1.2, 1.4, 2),
        ),
    }
    return Decisions(**known | changes)


def sums(groups=(1, 1), **changes):
    return summed(decisions(**changes), groups, clipping_thresholds(3, 2))
