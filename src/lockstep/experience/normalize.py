"""Running moments of observations and returns: frozen during a rollout, updated once from all shards' sums."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from lockstep.errors import ConfigError

EPS = 1e-8
"""Added to a variance before its square root."""
LIMIT = 10.0
"""Normalized numbers are clipped to this many standard deviations by default."""


def batch_moments(sums: Any, xp: ModuleType = np) -> tuple[Any, Any, Any]:
    """Weight [1], mean [F] and variance [F] of rows from the sums of all shards [1 + 2 F], in numpy or `jax.numpy`.

    The mean and the squares are relative to the mean before these rows.
    """
    size = len(sums) // 2
    weight = sums[:1]
    shift = sums[1 : 1 + size] / sums[0]
    square = sums[1 + size :] / sums[0]
    # Where all rows are equal, rounding may leave this difference a little below 0.
    return weight, shift, xp.maximum(square - xp.square(shift), 0.0)


class RunningMoments:
    """Mean and variance of everything seen so far, over all ranks (float64).

    Args:
        size: F.
        limit: of normalized numbers, in standard deviations.
        fixed: columns that stay as they are, as those of images: their mean is 0, their variance 1, and they have no
            limit.

    Attributes:
        bounds: the limit, or that of each column, [F] float32, if some are `fixed`.
        mean: [F].
        variance: [F].
        fixed: bool [F], true for the columns that are `fixed`; None if there are none.
    """

    def __init__(self, size: int, limit: float = LIMIT, fixed: Sequence[slice] = ()) -> None:
        self.limit = limit
        mask = np.zeros(size, bool)
        for columns in fixed:
            mask[columns] = True
        self.fixed = mask if fixed else None
        self.bounds = np.where(mask, np.inf, limit).astype(np.float32) if fixed else limit
        self._count = np.zeros(1)
        self.mean, self.variance = np.zeros(size), np.ones(size)

    @property
    def count(self) -> float:
        """Total weight seen."""
        return float(self._count[0])

    @property
    def num_sums(self) -> int:
        """Length of the result of `sums`."""
        return 1 + 2 * len(self.mean)

    def sums(self, rows: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """The sums of one shard for `update`: weight, sum and sum of squares of `rows` [N, F] weighted by `weight` [N].

        Relative to the current mean, which is equal on all ranks: squares of large numbers would lose digits.
        """
        if rows.shape[1:] != self.mean.shape:
            raise ConfigError(
                f"rows has shape {list(rows.shape)}; give [N, {len(self.mean)}], the size of these moments"
            )
        centred = rows.astype(np.float64) - self.mean
        return np.concatenate([[weight.sum()], weight @ centred, weight @ np.square(centred)])

    def begin_at(self, mean: np.ndarray) -> None:
        """Set the origin of the first update to `mean` [F], equal on all ranks."""
        assert self.count == 0, "there is a mean already"
        self.mean[:] = mean if self.fixed is None else np.where(self.fixed, 0.0, mean)

    def merged(self, sums: np.ndarray) -> dict[str, np.ndarray]:
        """The state after an update with sums of positive weight (Chan, Golub and LeVeque, 1979)."""
        count = self._count
        weight, shift, inner = batch_moments(sums)
        total = count + weight
        variance = (count * self.variance + weight * inner) / total
        variance += count * weight * shift**2 / total**2
        mean = self.mean + shift * weight / total
        if self.fixed is not None:
            mean[self.fixed], variance[self.fixed] = 0.0, 1.0
        return {"count": total, "mean": mean, "variance": variance}

    def update(self, sums: np.ndarray) -> None:
        """Update from the sums of all shards; no effect if their weight is 0."""
        if sums[0] > 0:
            self.restore(self.merged(sums))

    def normalize(self, rows: np.ndarray) -> np.ndarray:
        """(x - mean) / standard deviation as float32, within +-`bounds`. Nothing changes before the first update."""
        if self.count == 0:
            return rows.astype(np.float32, copy=False)
        mean, scale = self.mean_and_scale
        scaled = (rows - mean) * scale
        return np.clip(scaled, -self.bounds, self.bounds, out=scaled)

    def scale(self, rows: np.ndarray) -> np.ndarray:
        """Rows divided by the standard deviation as float32, within `limit`; for rewards, whose sign must stay."""
        if self.count == 0:
            return rows
        return np.clip(rows * np.float32(1.0 / np.sqrt(self.variance[0] + EPS)), -self.limit, self.limit)

    @property
    def mean_and_scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and reciprocal of the standard deviation, [F] float32 each."""
        return self.mean.astype(np.float32), (1.0 / np.sqrt(self.variance + EPS)).astype(np.float32)

    @property
    def center_and_deviation(self) -> tuple[float, float]:
        """Mean and standard deviation of the first number; 0 and 1 before the first update."""
        return (float(self.mean[0]), float(np.sqrt(self.variance[0] + EPS))) if self.count else (0.0, 1.0)

    def state(self) -> dict[str, np.ndarray]:
        """All arrays, not copied."""
        return {"count": self._count, "mean": self.mean, "variance": self.variance}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore a `state`; a negative variance, which earlier versions could save, becomes 0."""
        for name, array in self.state().items():
            array[:] = state[name]
        np.maximum(self.variance, 0.0, out=self.variance)


class DiscountedReturns:
    """G_t = r_t + gamma G_{t-1} within an episode; rewards are scaled by its standard deviation.

    Attributes:
        value: [B] G of the last step, 0 where the episode ended with it.
    """

    def __init__(self, num_envs: int, gamma: float) -> None:
        self._gamma, self.value = gamma, np.zeros(num_envs)

    def update(self, reward: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """G of every step of a rollout [T, B]; an episode starts at 0. A reward that is not finite counts 0."""
        reward, discounted = np.where(np.isfinite(reward), reward, 0), np.empty(reward.shape)
        for t in range(len(reward)):
            self.value = self._gamma * self.value + reward[t]
            discounted[t] = self.value
            self.value = np.where(ended[t], 0.0, self.value)
        return discounted
