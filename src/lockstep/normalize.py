"""Running moments of observations and returns: frozen during a rollout, updated once from all shards' sums."""

import numpy as np

_EPS = 1e-8
_LIMIT = 10.0


class RunningMoments:
    """Mean and variance of everything seen so far, over all ranks (float64).

    Attributes:
        count: total weight seen.
        mean: [F].
        variance: [F].
    """

    def __init__(self, size: int) -> None:
        self.count = 0.0
        self.mean, self.variance = np.zeros(size), np.ones(size)

    @property
    def num_sums(self) -> int:
        """Length of what `sums` returns."""
        return 1 + 2 * len(self.mean)

    def sums(self, rows: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """What one shard adds to the moments: weight, sum and sum of squares of `rows` [N, F] weighed by `weight` [N].

        Rows are taken relative to the mean so far, which every rank holds alike: squares of large numbers lose digits.
        """
        centred = rows.astype(np.float64) - self.mean
        return np.concatenate([[weight.sum()], weight @ centred, weight @ np.square(centred)])

    def update(self, sums: np.ndarray) -> None:
        """Merge the sums of all shards (Chan, Golub and LeVeque, 1979)."""
        size = len(self.mean)
        weight, shift, square = sums[0], sums[1 : 1 + size] / sums[0], sums[1 + size :] / sums[0]
        total = self.count + weight
        self.variance = (self.count * self.variance + weight * (square - shift**2)) / total
        self.variance += self.count * weight * shift**2 / total**2
        self.mean = self.mean + shift * weight / total
        self.count = total

    def normalize(self, rows: np.ndarray) -> np.ndarray:
        """(x - mean) / deviation as float32, within 10 deviations. Nothing changes before the first update."""
        if self.count == 0:
            return rows.astype(np.float32, copy=False)
        scale = (1.0 / np.sqrt(self.variance + _EPS)).astype(np.float32)
        scaled = (rows - self.mean.astype(np.float32)) * scale
        return np.clip(scaled, -_LIMIT, _LIMIT, out=scaled)

    def scale(self, rows: np.ndarray) -> np.ndarray:
        """`x / deviation` as float32, within 10; for rewards, whose sign must stay."""
        if self.count == 0:
            return rows
        return np.clip(rows * np.float32(1.0 / np.sqrt(self.variance[0] + _EPS)), -_LIMIT, _LIMIT)

    def state(self) -> dict[str, np.ndarray]:
        """Everything, as arrays."""
        return {"count": np.array([self.count]), "mean": self.mean, "variance": self.variance}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continue from what `state` returned."""
        self.count = float(state["count"][0])
        self.mean, self.variance = state["mean"].copy(), state["variance"].copy()


class DiscountedReturns:
    """G_t = r_t + gamma G_{t-1} within an episode: what the scale of rewards is measured by."""

    def __init__(self, num_envs: int, gamma: float) -> None:
        self._gamma, self._value = gamma, np.zeros(num_envs)

    def update(self, reward: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """G of every step of a rollout [T, B]; an episode starts at 0."""
        discounted = np.empty(reward.shape)
        for t in range(len(reward)):
            self._value = self._gamma * self._value + reward[t]
            discounted[t] = self._value
            self._value = np.where(ended[t], 0.0, self._value)
        return discounted
