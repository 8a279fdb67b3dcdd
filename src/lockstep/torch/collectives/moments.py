"""Count, mean and variance of the rows of all ranks, from one sum over ranks.

Shapes: N rows of this rank, F numbers of a row, R ranks.
"""

import torch
from torch import Tensor

from lockstep.torch.flat import divisor

_CANCELLED = 1e-6
"""A variance below this part of the squared mean has lost at least six of float64's 16 digits, as a difference of two
sums of squares."""


def sums_of(rows: Tensor, weight: Tensor | None, rank: int, size: int) -> Tensor:
    """What the ranks add up: [1 + 3 F + R (1 + F)] float64.

    Weight, sum and sum of squares; sum of squares about the rank's own mean; and a table of each rank's weight and
    mean, zero but for the row of this rank.

    Args:
        rows: [N, F] float64; those of weight 0 are ignored, even NaN.
        weight: [N]; None: each row counts 1.
        rank: of this process.
        size: R.
    """
    weights = rows.new_ones(len(rows)) if weight is None else weight.double()
    if weight is not None:
        rows = rows.masked_fill((weights == 0)[:, None], 0.0)  # 0 times NaN is NaN
    count, total = weights.sum().reshape(1), weights @ rows
    own = total / divisor(count)
    table = rows.new_zeros(size, 1 + len(own))
    table[rank] = torch.cat([count, own])
    return torch.cat([count, total, weights @ rows.square(), weights @ (rows - own).square(), table.reshape(-1)])


def moments_of(sums: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weight [], mean [F] and variance [F] of all rows.

    Args:
        sums: the sum of all ranks' `sums_of`.
        size: R.
    """
    features = (len(sums) - 1 - size) // (3 + size)
    count, total, squares, inner, table = torch.split(sums, [1, features, features, features, size * (1 + features)])
    counts, means = torch.split(table.view(size, 1 + features), [1, features], 1)
    mean = total / divisor(count)
    variance = squares / divisor(count) - mean.square()
    # Combining the ranks' moments (Chan et al., 1979) keeps the digits. The other formula stays where it has enough of
    # them, so that runs end with the bits they had.
    combined = (inner + (counts * (means - mean).square()).sum(0)) / divisor(count)
    return count[0], mean, torch.where(variance < _CANCELLED * mean.square(), combined, variance.clamp_min(0))
