"""Running moments of observations and returns on the device: `lockstep.normalize`, as pure functions in float32."""

from typing import Any, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.normalize import EPS, LIMIT, RunningMoments


class Moments(NamedTuple):
    """Number of rows seen [1], mean [F] and variance [F]."""

    seen: Array
    mean: Array
    variance: Array

    @property
    def num_sums(self) -> int:
        """Length of what `sums` returns."""
        return 1 + 2 * len(self.mean)

    def sums(self, rows: Array) -> Array:
        """What one shard adds: number, sum and sum of squares of `rows` [N, F], relative to the mean so far."""
        centred = rows - self.mean[None]
        count = jnp.full(1, len(rows), jnp.float32)
        return jnp.concatenate([count, centred.sum(0), jnp.square(centred).sum(0)])

    def update(self, sums: Array) -> "Moments":
        """With the sums of all shards (Chan, Golub and LeVeque, 1979)."""
        size = len(self.mean)
        weight, shift, square = sums[:1], sums[1 : 1 + size] / sums[0], sums[1 + size :] / sums[0]
        total = self.seen + weight
        old, new = self.seen / total, weight / total
        variance = old * self.variance + new * (square - jnp.square(shift)) + old * new * jnp.square(shift)
        return Moments(total, self.mean + shift * new, variance)

    def normalize(self, rows: Array) -> Array:
        """(x - mean) / deviation within 10 deviations, of rows [..., F]; as they are before the first update."""
        scale = 1.0 / jnp.sqrt(self.variance + EPS)
        mean, scale = (jnp.broadcast_to(x, rows.shape) for x in (self.mean, scale))
        return jnp.where(self.seen[0] > 0, jnp.clip((rows - mean) * scale, -LIMIT, LIMIT), rows)

    def scale(self, rows: Array) -> Array:
        """`x / deviation` within 10; for rewards, whose sign must stay."""
        scaled = jnp.clip(rows / jnp.sqrt(self.variance[0] + EPS), -LIMIT, LIMIT)
        return jnp.where(self.seen[0] > 0, scaled, rows)


def read(moments: RunningMoments) -> Moments:
    """What the host holds, in float32."""
    columns = (array.astype(np.float32) for array in moments.state().values())
    return Moments(*cast(Any, tuple(columns)))


def write(found: Moments, moments: RunningMoments) -> None:
    """Take what a device came to for the host, which saves it and evaluates with it."""
    moments.restore({name: np.asarray(value) for name, value in zip(moments.state(), found, strict=True)})
