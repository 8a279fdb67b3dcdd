"""A shard of environments on the device between rollouts, what a rollout leaves, and what the host asks about it.

Shapes: T steps, B environments of a shard, O observation.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.jax.batch import Steps
from lockstep.jax.envs.packed import Packed
from lockstep.record.episodes import KEPT
from lockstep.world import stream

REWARD, OBSERVATION = 1, 2
"""What a fault is of."""


class NonFiniteValue(NamedTuple):
    """The first number of a shard's environments in the last rollout that is not finite."""

    what: Array
    """0: all are finite."""
    step: Array
    """Of the rollout."""
    env: Array
    """Of the shard."""
    value: Array


class Told(NamedTuple):
    """What the host asks about the episodes of a shard that ended since it last looked."""

    ended: Array
    """How many."""
    returns: Array
    """Their sum."""
    lengths: Array
    recent: Array
    """[KEPT] returns of the newest, the newest last; as many as there are."""
    updates: Array
    """[KEPT] the update of each."""


class Shard(NamedTuple):
    """Where the environments of a shard stand between two rollouts; every leaf [B, ...] but the last ones."""

    state: Packed
    observation: Array
    returned: Array
    """Rewards of the episode so far."""
    length: Array
    """Steps of the episode so far."""
    discounted: Array
    """As `lockstep.experience.normalize.DiscountedReturns`."""
    keys: Array
    """[B, 2] of each environment, by its global index."""
    action_key: Array
    """[2] of the shard, for its actions."""
    order_key: Array
    """[2] of the shard, for its minibatches."""
    totals: Told
    fault: NonFiniteValue
    first: Array
    """uint32: a checksum of the first rollout of the run."""


class Drawn(NamedTuple):
    """What is random in a rollout, [T, B, ...], drawn at once."""

    noise: Array
    step: Array
    reset: Array


class Seen(NamedTuple):
    """What a step leaves for learning, [T, B, ...]."""

    raw: Array | None
    """The observation as the environment gave it, where what the policy sees is another."""
    observation: Array
    parameters: Array
    action: Array
    reward: Array
    terminated: Array
    ended: Array
    final_value: Array
    is_final: Array
    returned: Array
    length: Array
    discounted: Array | None


def keys_of(seed: int, shard: int, shard_envs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The keys of a shard: of each of its environments [B, 2] by global index, of its actions, of its minibatches."""

    def key(name: str, index: int) -> np.ndarray:
        return stream(seed, name, index).integers(0, 1 << 32, 2, np.uint32)

    envs = np.stack([key("env on device", shard * shard_envs + i) for i in range(shard_envs)])
    return envs, key("action on device", shard), key("minibatch on device", shard)


def nothing_told() -> Told:
    """Before the first episode."""
    count, returns = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32)
    return Told(count, returns, count, jnp.zeros(KEPT, jnp.float32), jnp.zeros(KEPT, jnp.int32))


def no_fault() -> NonFiniteValue:
    """All numbers are finite."""
    zero = jnp.zeros((), jnp.int32)
    return NonFiniteValue(zero, zero, zero, jnp.zeros((), jnp.float32))


def tell(totals: Told, seen: Seen, update: Array) -> Told:
    """With the episodes that ended in a rollout."""
    ended = seen.ended.reshape(-1) > 0
    total = ended.sum(dtype=jnp.int32)

    def add() -> Told:
        counted = jnp.cumsum(ended.astype(jnp.int32))
        back = jnp.arange(KEPT - 1, -1, -1, dtype=jnp.int32)  # how many episodes came later
        place = jnp.searchsorted(counted, total - back)
        new, old = back < total, jnp.minimum(jnp.arange(KEPT, dtype=jnp.int32) + total, KEPT - 1)
        recent = jnp.where(new, seen.returned.reshape(-1)[place], totals.recent[old])
        return Told(
            totals.ended + total,
            totals.returns + (seen.returned * seen.ended).sum(),
            totals.lengths + jnp.where(seen.ended > 0, seen.length, 0).sum(dtype=jnp.int32),
            recent,
            jnp.where(new, update, totals.updates[old]),
        )

    return jax.lax.cond(total > 0, add, lambda: totals)


def find_fault(seen: Seen, last: Array) -> NonFiniteValue:
    """The first number of a rollout that is not finite; `last` are the observations [B, ...] after it."""
    raw = jnp.concatenate([seen.observation if seen.raw is None else seen.raw, last[None]]).astype(jnp.float32)
    final = jnp.where(seen.is_final > 0, seen.final_value, 0.0)  # no number where the observation was none
    healthy = jnp.isfinite(seen.reward).all() & jnp.isfinite(raw).all() & jnp.isfinite(final).all()

    def find() -> NonFiniteValue:
        flat = raw.reshape(*raw.shape[:2], -1)
        bad = ~jnp.isfinite(flat)
        value = jnp.take_along_axis(flat, bad.argmax(-1, keepdims=True), -1)[..., 0]
        bad_final = ~jnp.isfinite(final)
        # Row t of an observation was seen by step t; the environment gave it in the step before.
        tables = (
            (REWARD, 0, ~jnp.isfinite(seen.reward), seen.reward),
            (OBSERVATION, -1, bad.any(-1), value),
            (OBSERVATION, 0, bad_final, final),
        )
        found, order = no_fault(), jnp.int32(2 * flat.shape[0] * flat.shape[1])
        for what, shift, where, values in tables:
            place = where.reshape(-1).argmax().astype(jnp.int32)
            when = place + shift * where.shape[1]
            sooner = where.any() & (when < order)
            new = NonFiniteValue(
                jnp.int32(what), when // where.shape[1], place % where.shape[1], values.reshape(-1)[place]
            )
            found = NonFiniteValue(*(jnp.where(sooner, x, y) for x, y in zip(new, found, strict=True)))
            order = jnp.where(sooner, when, order)
        return found

    return jax.lax.cond(healthy, no_fault, find)


def checksum(steps: Steps) -> Array:
    """uint32 of what was seen and done."""
    total = jnp.zeros((), jnp.uint32)
    for part in (steps.observation, steps.action):
        numbers = part.reshape(-1)
        bits = numbers.astype(jnp.uint32) if numbers.dtype.itemsize != 4 else numbers.view(jnp.uint32)
        place = jnp.arange(bits.size, dtype=jnp.uint32)
        total = total * jnp.uint32(31) + (bits * (place * jnp.uint32(0x9E3779B2) + jnp.uint32(1))).sum(dtype=jnp.uint32)
    return total
