"""The state of a shard of environments on the device, the records of a rollout, and episode totals for the host.

Shapes: T steps, B environments of a shard, O observation, S numbers of a recurrent policy's state, 0 without one.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.envs.spec import ActionSpec
from lockstep.jax.batch import Steps
from lockstep.jax.envs.interface import Observation
from lockstep.jax.envs.packed import Packed, PackedEnv, wrap_key
from lockstep.jax.moments import compensated_sum
from lockstep.record.episodes import KEPT
from lockstep.world import stream

REWARD, OBSERVATION = 1, 2
"""Values of `NonFiniteValue.what`."""


class NonFiniteValue(NamedTuple):
    """The first non-finite number in the last rollout of a shard."""

    what: Array
    """0 (none), `REWARD` or `OBSERVATION`."""
    step: Array
    """Index in the rollout."""
    env: Array
    """Index in the shard."""
    value: Array


class EpisodeTotals(NamedTuple):
    """Totals of a shard's episodes that ended since the last read by the host."""

    ended: Array
    """Number of episodes."""
    returns: Array
    """Sum of returns."""
    returns_rest: Array
    """Its rounding error: how updates are divided among calls decides no digit of a metric."""
    lengths: Array
    """Sum of lengths."""
    recent_ended: Array
    """[KEPT] number of episodes of the newest updates with any, newest last; right-aligned if there are fewer."""
    recent_returns: Array
    """[KEPT] sum of returns in each."""
    updates: Array
    """[KEPT] the number of each."""


class Shard(NamedTuple):
    """The state of a shard's environments between two rollouts; leaves are [B, ...] unless noted."""

    state: Packed
    observation: Observation
    returned: Array
    """Return of the episode so far."""
    length: Array
    """Steps of the episode so far."""
    discounted: Array
    """Discounted return; see `lockstep.experience.normalize.DiscountedReturns`."""
    memory: Array
    """[B, S] state of a recurrent policy, of its actor and then of its critic; 0 where an episode begins."""
    keys: Array
    """[B, 2] key of each environment, by its global index."""
    action_key: Array
    """[2] key of the shard's actions."""
    order_key: Array
    """[2] key of the shard's minibatch orders."""
    totals: EpisodeTotals
    fault: NonFiniteValue
    first: Array
    """uint32 checksum of the first rollout of the run."""


class RandomDraws(NamedTuple):
    """All random draws of a rollout, [T, B, ...]."""

    noise: Array
    step: Array
    reset: Array


class StepRecord(NamedTuple):
    """The record of a step, [T, B, ...]."""

    raw: Observation | None
    """The observation before normalization; None without it."""
    observation: Observation
    parameters: Array
    action: Array
    reward: Array
    terminated: Array
    ended: Array
    final_value: Array
    """NaN where the observation is not finite. A recurrent policy values it later."""
    is_final: Array
    returned: Array
    length: Array
    discounted: Array | None
    final: Observation | None = None
    """Normalized: the observation after the step, before a reset; for a recurrent policy, which values it later."""


def keys_of(seed: int, shard: int, shard_envs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A shard's keys: of its environments [B, 2] by global index, of its actions, of its minibatch orders."""

    def key(name: str, index: int) -> np.ndarray:
        return stream(seed, name, index).integers(0, 1 << 32, 2, np.uint32)

    envs = np.stack([key("env on device", shard * shard_envs + i) for i in range(shard_envs)])
    return envs, key("action on device", shard), key("minibatch on device", shard)


def first_shard(env: PackedEnv, keys: Array, action_key: Array, order_key: Array, memory_size: int = 0) -> Shard:
    """The shard with new episodes in all environments; `memory_size` is S."""
    state = jax.vmap(env.reset)(jax.vmap(wrap_key)(keys))
    zeros = jnp.zeros(len(keys), jnp.float32)
    return Shard(
        state, jax.vmap(env.observe)(state), zeros, jnp.zeros(len(keys), jnp.int32), zeros,
        jnp.zeros((len(keys), memory_size), jnp.float32), keys, action_key, order_key,
        no_episodes(), all_finite(), jnp.zeros((), jnp.uint32),
    )  # fmt: skip


def env_keys(shard: Shard, update: Array, num_steps: int) -> list[Array]:
    """Keys [T, B] of the environments' steps, and of their resets, in a rollout."""
    keys = jax.vmap(jax.random.fold_in, (0, None))(jax.vmap(wrap_key)(shard.keys), update)
    return [
        jax.vmap(lambda key, what=what: jax.random.split(jax.random.fold_in(key, what), num_steps), out_axes=1)(keys)
        for what in range(2)
    ]


def no_episodes() -> EpisodeTotals:
    """Empty totals."""
    count, returns = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32)
    counts = jnp.zeros(KEPT, jnp.int32)
    return EpisodeTotals(count, returns, returns, count, counts, jnp.zeros(KEPT, jnp.float32), counts)


def all_finite() -> NonFiniteValue:
    """The value for a rollout of finite numbers."""
    zero = jnp.zeros((), jnp.int32)
    return NonFiniteValue(zero, zero, zero, jnp.zeros((), jnp.float32))


def add_episodes(totals: EpisodeTotals, seen: StepRecord, update: Array) -> EpisodeTotals:
    """Add the episodes that ended in a rollout."""
    ended = seen.ended > 0
    total = ended.sum(dtype=jnp.int32)

    def add() -> EpisodeTotals:
        more = (seen.returned * seen.ended).sum()
        return EpisodeTotals(
            totals.ended + total,
            *compensated_sum(totals.returns, totals.returns_rest, more),
            totals.lengths + jnp.where(ended, seen.length, 0).sum(dtype=jnp.int32),
            *(
                jnp.concatenate([old[1:], jnp.asarray(new, old.dtype)[None]])
                for old, new in ((totals.recent_ended, total), (totals.recent_returns, more), (totals.updates, update))
            ),
        )

    return jax.lax.cond(total > 0, add, lambda: totals)


def find_non_finite(seen: StepRecord, last: Observation) -> NonFiniteValue:
    """The first non-finite number of a rollout; `last` are the observations [B, ...] after it."""

    def as_numbers(rows: Array, end: Array) -> Array:
        if rows.dtype == jnp.uint8:  # uint8 images are finite, and as numbers they would take four times the memory
            return jnp.zeros((len(rows) + 1, len(end), 1), jnp.float32)
        return jnp.concatenate([rows, end[None]]).astype(jnp.float32).reshape(len(rows) + 1, len(end), -1)

    whole = jax.tree.map(as_numbers, seen.observation if seen.raw is None else seen.raw, last)
    raw = jnp.concatenate(jax.tree.leaves(whole), -1)
    final = jnp.where(seen.is_final > 0, seen.final_value, 0.0)
    healthy = jnp.isfinite(seen.reward).all() & jnp.isfinite(raw).all() & jnp.isfinite(final).all()

    def find() -> NonFiniteValue:
        bad = ~jnp.isfinite(raw)
        value = jnp.take_along_axis(raw, bad.argmax(-1, keepdims=True), -1)[..., 0]
        bad_final = ~jnp.isfinite(final)
        # The observation of row t was returned by the environment in step t - 1.
        tables = (
            (REWARD, 0, ~jnp.isfinite(seen.reward), seen.reward),
            (OBSERVATION, -1, bad.any(-1), value),
            (OBSERVATION, 0, bad_final, final),
        )
        found, order = all_finite(), jnp.int32(2 * raw.shape[0] * raw.shape[1])
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

    return jax.lax.cond(healthy, all_finite, find)


def all_numbers_finite(observation: Observation) -> Array:
    """Whether all numbers [B, ...] of an environment's observation are finite, [B]."""
    parts = [jnp.isfinite(part).reshape(len(part), -1).all(-1) for part in jax.tree.leaves(observation)]
    return jnp.stack(parts).all(0)


def clipper(action: ActionSpec) -> Callable[[Array], Array]:
    """The function that clips actions for the environment, as `lockstep.experience.rollout.clipper`."""
    if action.kind != "continuous":
        return lambda chosen: chosen

    def clip(chosen: Array) -> Array:
        low, high = (jnp.broadcast_to(bound, chosen.shape) for bound in action.float32_bounds)
        return jnp.clip(jnp.where(jnp.isfinite(chosen), chosen, 0.0), low, high)

    return clip


def checksum(steps: Steps, noise: Array) -> Array:
    """uint32 checksum of observations, actions and drawn noise: tiny deterministic tasks differ by the noise alone."""
    total = jnp.zeros((), jnp.uint32)
    for part in jax.tree.leaves((steps.observation, steps.critic, steps.action, noise)):
        numbers = part.reshape(-1)
        bits = numbers.astype(jnp.uint32) if numbers.dtype.itemsize != 4 else numbers.view(jnp.uint32)
        place = jnp.arange(bits.size, dtype=jnp.uint32)
        total = total * jnp.uint32(31) + (bits * (place * jnp.uint32(0x9E3779B2) + jnp.uint32(1))).sum(dtype=jnp.uint32)
    return total
