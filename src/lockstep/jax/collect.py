"""Collecting experience where environments live on the device: a shard's rollout as one pure function.

Shapes: T steps, B environments of a shard, O observation, W noise of an action, P parameters of the policy.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.jax.batch import Steps
from lockstep.jax.envs.packed import Packed, PackedEnv, unpacked
from lockstep.jax.flat import Params
from lockstep.jax.moments import Moments
from lockstep.jax.networks import Policy
from lockstep.record.episodes import KEPT
from lockstep.world import stream

REWARD, OBSERVATION = 1, 2
"""What a fault is of."""


class Fault(NamedTuple):
    """The first number of a shard's environments that is not finite."""

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
    """As `lockstep.normalize.DiscountedReturns`."""
    keys: Array
    """[B, 2] of each environment, by its global index."""
    action_key: Array
    """[2] of the shard, for its actions."""
    order_key: Array
    """[2] of the shard, for its minibatches."""
    told: Told
    fault: Fault
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


class Collect:
    """Steps shards of environments with a policy; pure functions.

    Args:
        env: one environment.
        policy: the network and the distribution.
        num_steps: T.
        shard_envs: B.
        gamma: discount, for the normalizer of returns.
    """

    def __init__(self, env: PackedEnv, policy: Policy, *, num_steps: int, shard_envs: int, gamma: float) -> None:
        self._env, self._policy = env, policy
        self._num_steps, self._size, self._gamma = num_steps, shard_envs, gamma
        self._clip = _clipper(env.spec)

    def begin(self, keys: Array, action_key: Array, order_key: Array) -> Shard:
        """New episodes everywhere."""
        state = jax.vmap(self._env.reset)(jax.vmap(unpacked)(keys))
        size, zeros = self._size, jnp.zeros(self._size, jnp.float32)
        return Shard(
            state, jax.vmap(self._env.observe)(state), zeros, jnp.zeros(size, jnp.int32), zeros,
            keys, action_key, order_key, nothing_told(), _no_fault(), jnp.zeros((), jnp.uint32),
        )  # fmt: skip

    def rollout(
        self, params: Params, normalizers: Mapping[str, Moments], shard: Shard, update: Array
    ) -> tuple[Shard, Steps, Array]:
        """Step every environment T times.

        Args:
            params: of the policy.
            normalizers: of `observations` and `returns`, those that there are; frozen.
            shard: where its environments stand.
            update: number of the update, which with the shard's keys decides all that is random.

        Returns:
            Where they stand now, what to learn from, and what the shard adds to the normalizers, in their order.
        """
        params = _columns_first(params)
        episode = (shard.returned, shard.length, shard.discounted)
        start = (shard.state, shard.observation, *episode)
        (state, observation, *episode), seen = jax.lax.scan(
            lambda carry, drawn: self._step(params, normalizers, carry, drawn), start, self._draw(shard, update)
        )
        reward, sums = seen.reward, list[Array]()
        last = observation[None]
        if "observations" in normalizers:
            assert seen.raw is not None
            sums.append(normalizers["observations"].sums(seen.raw.reshape(-1, seen.raw.shape[-1])))
            last = normalizers["observations"].normalize(last)
        if "returns" in normalizers:
            assert seen.discounted is not None
            sums.append(normalizers["returns"].sums(seen.discounted.reshape(-1, 1)))
            reward = normalizers["returns"].scale(reward)
        steps = Steps(
            jnp.concatenate([seen.observation, last]), seen.action, reward, seen.terminated, seen.ended,
            jnp.ones_like(reward), seen.final_value, seen.is_final, seen.parameters,
        )  # fmt: skip
        first = jax.lax.cond(update == 0, lambda: _checksum(steps), lambda: shard.first)
        shard = shard._replace(
            state=state, observation=observation, returned=episode[0], length=episode[1], discounted=episode[2],
            told=_tell(shard.told, seen, update), fault=_fault(shard.fault, seen, observation), first=first,
        )  # fmt: skip
        return shard, steps, jnp.concatenate(sums) if sums else jnp.zeros(0, jnp.float32)

    def _draw(self, shard: Shard, update: Array) -> Drawn:
        keys = jax.vmap(jax.random.fold_in, (0, None))(jax.vmap(unpacked)(shard.keys), update)
        each = [
            jax.vmap(
                lambda key, what=what: jax.random.split(jax.random.fold_in(key, what), self._num_steps), out_axes=1
            )(keys)
            for what in range(2)
        ]
        action_key = jax.random.fold_in(unpacked(shard.action_key), update)
        noise = self._policy.distribution.draw_noise(action_key, (self._num_steps, self._size))
        return Drawn(noise, *each)

    def _step(
        self, params: Params, normalizers: Mapping[str, Moments], carry: tuple[Any, ...], drawn: Drawn
    ) -> tuple[tuple[Any, ...], Seen]:
        """One step of every environment; where an episode ends, the next begins."""
        state, raw, returned, length, discounted = carry
        observations = normalizers.get("observations")

        def see(observation: Array) -> Array:
            return observation if observations is None else observations.normalize(observation)

        seen = see(raw)
        parameters, _ = self._policy.apply(params, seen)
        action = self._policy.distribution.sample(params, parameters, drawn.noise)
        state, final, reward, terminated, truncated = jax.vmap(self._env.step)(state, self._clip(action), drawn.step)
        ended, is_final = terminated | truncated, truncated & ~terminated

        def begin() -> tuple[Packed, Array, Array]:
            new = jax.vmap(self._env.reset)(drawn.reset)
            chosen = tuple(jnp.where(_like(ended, x), y, x) for x, y in zip(state, new, strict=True))
            observation = jnp.where(_like(ended, final), jax.vmap(self._env.observe)(new), final)
            return chosen, observation, self._policy.apply(params, see(final))[1]

        # Rare, and dear: whoever does not ask for it does not pay.
        none = jnp.zeros(self._size, jnp.float32)
        state, observation, value = jax.lax.cond(ended.any(), begin, lambda: (state, final, none))
        counted = jnp.where(jnp.isfinite(reward), reward, 0.0)
        returned, length = returned + counted, length + 1
        grown = self._gamma * discounted + counted if "returns" in normalizers else None
        told = Seen(
            None if observations is None else raw, seen, parameters, action, reward, terminated.astype(jnp.float32),
            ended.astype(jnp.float32), value, is_final.astype(jnp.float32), returned, length, grown,
        )  # fmt: skip
        new = [jnp.where(ended, jnp.zeros_like(x), x) for x in (returned, length)]
        new.append(discounted if grown is None else jnp.where(ended, 0.0, grown))
        return (state, observation, *new), told


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


def _no_fault() -> Fault:
    zero = jnp.zeros((), jnp.int32)
    return Fault(zero, zero, zero, jnp.zeros((), jnp.float32))


def _tell(told: Told, seen: Seen, update: Array) -> Told:
    """With the episodes that ended in a rollout."""
    ended = seen.ended.reshape(-1) > 0
    total = ended.sum(dtype=jnp.int32)

    def add() -> Told:
        counted = jnp.cumsum(ended.astype(jnp.int32))
        back = jnp.arange(KEPT - 1, -1, -1, dtype=jnp.int32)  # how many episodes came later
        place = jnp.searchsorted(counted, total - back)
        new, old = back < total, jnp.minimum(jnp.arange(KEPT, dtype=jnp.int32) + total, KEPT - 1)
        recent = jnp.where(new, seen.returned.reshape(-1)[place], told.recent[old])
        return Told(
            told.ended + total,
            told.returns + (seen.returned * seen.ended).sum(),
            told.lengths + jnp.where(seen.ended > 0, seen.length, 0).sum(dtype=jnp.int32),
            recent,
            jnp.where(new, update, told.updates[old]),
        )

    return jax.lax.cond(total > 0, add, lambda: told)


def _fault(fault: Fault, seen: Seen, last: Array) -> Fault:
    """The first number that is not finite; an older one comes first."""
    raw = jnp.concatenate([seen.observation if seen.raw is None else seen.raw, last[None]]).astype(jnp.float32)
    final = jnp.where(seen.is_final > 0, seen.final_value, 0.0)  # no number where the observation was none
    healthy = jnp.isfinite(seen.reward).all() & jnp.isfinite(raw).all() & jnp.isfinite(final).all()

    def find() -> Fault:
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
        found, order = fault, jnp.int32(2 * flat.shape[0] * flat.shape[1])
        for what, shift, where, values in tables:
            place = where.reshape(-1).argmax().astype(jnp.int32)
            when = place + shift * where.shape[1]
            sooner = where.any() & (when < order)
            new = Fault(jnp.int32(what), when // where.shape[1], place % where.shape[1], values.reshape(-1)[place])
            found = Fault(*(jnp.where(sooner, x, y) for x, y in zip(new, found, strict=True)))
            order = jnp.where(sooner, when, order)
        return found

    return jax.lax.cond(healthy | (fault.what > 0), lambda: fault, find)


def _checksum(steps: Steps) -> Array:
    """uint32 of what was seen and done."""
    total = jnp.zeros((), jnp.uint32)
    for part in (steps.observation, steps.action):
        numbers = part.reshape(-1)
        bits = numbers.astype(jnp.uint32) if numbers.dtype.itemsize != 4 else numbers.view(jnp.uint32)
        place = jnp.arange(bits.size, dtype=jnp.uint32)
        total = total * jnp.uint32(31) + (bits * (place * jnp.uint32(0x9E3779B2) + jnp.uint32(1))).sum(dtype=jnp.uint32)
    return total


def _like(flags: Array, rows: Array) -> Array:
    """[B] as `rows` [B, ...] needs it to choose by."""
    return jnp.broadcast_to(flags.reshape(-1, *(1 for _ in rows.shape[1:])), rows.shape)


def _columns_first(params: Params) -> Params:
    """The same numbers; matrices lie in memory as a product with rows reads them: turned once, not in every step."""
    return {name: jax.lax.optimization_barrier(x.T).T if x.ndim == 2 else x for name, x in params.items()}


def _clipper(spec: Any) -> Any:
    """As `lockstep.rollout.clipper`."""
    if spec.action.kind != "continuous":
        return lambda action: action
    low, high = np.array(spec.action.low, np.float32), np.array(spec.action.high, np.float32)

    def clip(action: Array) -> Array:
        bounds = (jnp.broadcast_to(bound, action.shape) for bound in (low, high))
        return jnp.clip(jnp.where(jnp.isfinite(action), action, 0.0), *bounds)

    return clip
