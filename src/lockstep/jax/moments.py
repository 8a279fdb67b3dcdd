"""Running moments on the device: `lockstep.experience.normalize` as pure functions in float32.

Each number that is kept between updates is a pair of float32, the number and its rounding error: counts exceed 2^24,
and late updates change a mean by less than its last digit.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.experience.normalize import EPS, LIMIT, RunningMoments, batch_moments

_ORDER = ("observations", "critic_observations", "returns", "values")
"""Of the normalizers' sums in one array. Inside compiled code a mapping has the order of its names."""


class Moments(NamedTuple):
    """Number of rows seen [1], mean [F] and variance [F]; the rounding error of each; and which columns are fixed."""

    seen: Array
    mean: Array
    variance: Array
    seen_rest: Array
    mean_rest: Array
    variance_rest: Array
    fixed: Array | None = None
    """bool [F], as in `RunningMoments`."""

    @property
    def num_sums(self) -> int:
        """Length of the result of `sums`."""
        return 1 + 2 * len(self.mean)

    def sums(self, rows: Array) -> Array:
        """Sums of one shard: number, sum and sum of squares of `rows` [N, F], relative to the mean so far."""
        centred = self.centred(rows)
        count = jnp.full(1, len(rows), jnp.float32)
        return jnp.concatenate([count, centred.sum(0), jnp.square(centred).sum(0)])

    def centred(self, rows: Array) -> Array:
        """Rows [N, F] relative to the mean so far."""
        return (rows - self.mean[None]) - self.mean_rest[None]

    def update(self, sums: Array) -> "Moments":
        """The moments after an update with the sums of all shards (Chan, Golub and LeVeque, 1979)."""
        weight, shift, inner = batch_moments(sums, jnp)
        seen, seen_rest = compensated_sum(self.seen, self.seen_rest, weight)
        old, new = self.seen / seen, weight / seen
        mean, mean_rest = compensated_sum(self.mean, self.mean_rest, shift * new)
        before = jnp.where(self.seen > 0, self.variance, 0.0)
        more = new * ((inner - before) + old * jnp.square(shift))
        variance, variance_rest = compensated_sum(before, self.variance_rest, more)
        if self.fixed is not None:
            mean, mean_rest, variance_rest = (jnp.where(self.fixed, 0.0, x) for x in (mean, mean_rest, variance_rest))
            variance = jnp.where(self.fixed, 1.0, variance)
        return Moments(seen, mean, variance, seen_rest, mean_rest, variance_rest, self.fixed)

    def normalize(self, rows: Array, limit: float = LIMIT) -> Array:
        """(x - mean) / standard deviation, within +-`limit`, of rows [..., F]; unchanged before the first update.

        Columns that are `fixed` have no limit.
        """
        scale = 1.0 / jnp.sqrt(self.variance + EPS)
        mean, scale = (jnp.broadcast_to(x, rows.shape) for x in (self.mean, scale))
        clipped = jnp.clip((rows - mean) * scale, -limit, limit)
        if self.fixed is not None:
            clipped = jnp.where(jnp.broadcast_to(self.fixed, rows.shape), rows, clipped)
        return jnp.where(self.seen[0] > 0, clipped, rows)

    @property
    def center_and_deviation(self) -> tuple[Array, Array]:
        """Mean and standard deviation of the first number; 0 and 1 before the first update."""
        deviation = jnp.where(self.seen[0] > 0, jnp.sqrt(self.variance[0] + EPS), 1.0)
        return jnp.where(self.seen[0] > 0, self.mean[0], 0.0), deviation

    def scale(self, rows: Array) -> Array:
        """Rows divided by the standard deviation, within 10; for rewards, whose sign must stay."""
        scaled = jnp.clip(rows / jnp.sqrt(self.variance[0] + EPS), -LIMIT, LIMIT)
        return jnp.where(self.seen[0] > 0, scaled, rows)


def merged(normalizers: Mapping[str, Moments], sums: Array, finite: Array) -> tuple[dict[str, Moments], Array]:
    """Update all normalizers with the sums of all shards.

    Args:
        normalizers: by name, of `observations`, `critic_observations`, `returns` and `values`.
        sums: the results of `sums`, one after another in this order, summed over all shards.
        finite: False leaves all normalizers unchanged.

    Returns:
        The normalizers; and the index, over the columns of all of them, of the first column whose moments would not be
        finite, in which case none is changed. -1 if all are finite.
    """
    assert set(normalizers) <= set(_ORDER)
    place, after, healthy = 0, dict[str, Moments](), list[Array]()
    for name in _ORDER:
        if name not in normalizers:
            continue
        held = normalizers[name]
        after[name] = held.update(sums[place : place + held.num_sums])
        healthy.append(jnp.isfinite(after[name].mean) & jnp.isfinite(after[name].variance))
        place += held.num_sums
    if not healthy:
        return after, jnp.full((), -1, jnp.int32)
    bad = ~jnp.concatenate(healthy)
    first = jnp.where(bad.any(), bad.argmax(), -1).astype(jnp.int32)
    taken = finite & (first < 0)
    return jax.tree.map(lambda new, old: jnp.where(taken, new, old), after, dict(normalizers)), first


def normalized(moments: RunningMoments, rows: Array) -> Array:
    """`moments.normalize` of rows [..., F] on their device, with the same bits."""
    if moments.count == 0:
        return rows
    return _normalize(rows, *moments.mean_and_scale, np.float32(moments.bounds))


@jax.jit
def _normalize(rows: Array, mean: Array, scale: Array, bounds: Array) -> Array:
    mean, scale, bounds = (jnp.broadcast_to(x, rows.shape) for x in (mean, scale, bounds))
    return jnp.clip((rows - mean) * scale, -bounds, bounds)


def read(moments: RunningMoments) -> Moments:
    """The moments of the host, which are float64."""
    held = list(moments.state().values())
    columns = [array.astype(np.float32) for array in held]
    columns += [(array - column).astype(np.float32) for array, column in zip(held, columns, strict=True)]
    return Moments(*cast(Any, tuple(columns)), fixed=cast(Any, moments.fixed))


def write(found: Moments, moments: RunningMoments) -> None:
    """Copy the moments of a device to the host, which saves them and evaluates with them."""
    wide = [np.asarray(column, np.float64) for column in found[:6]]
    together = (column + rest for column, rest in zip(wide[:3], wide[3:], strict=True))
    moments.restore(dict(zip(moments.state(), together, strict=True)))


def compensated_sum(high: Array, low: Array, more: Array) -> tuple[Array, Array]:
    """The sum of all three, as a float32 number and its rounding error (Knuth's and Dekker's sums).

    `high + low` as float64 does not depend on how a few numbers are grouped.
    """
    # The compiler must neither fuse the product in `more` into the additions nor simplify them.
    more = jax.lax.optimization_barrier(more)
    total = jax.lax.optimization_barrier(high + more)
    part = jax.lax.optimization_barrier(total - high)
    low = low + ((high - jax.lax.optimization_barrier(total - part)) + (more - part))
    result = jax.lax.optimization_barrier(total + low)
    return result, low - (result - total)
