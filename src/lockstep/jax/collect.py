"""Collecting experience where environments live on the device: a shard's rollout as one pure function.

Shapes: T steps, B environments of a shard, O observation, W noise of an action, P parameters of the policy.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.jax.batch import Steps
from lockstep.jax.device_shard import Drawn, Seen, Shard, checksum, find_fault, no_fault, nothing_told, tell
from lockstep.jax.envs.packed import Packed, PackedEnv, unpacked
from lockstep.jax.flat import Params
from lockstep.jax.moments import Moments
from lockstep.jax.networks import Policy


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
            keys, action_key, order_key, nothing_told(), no_fault(), jnp.zeros((), jnp.uint32),
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
        first = jax.lax.cond(update == 0, lambda: checksum(steps), lambda: shard.first)
        shard = shard._replace(
            state=state, observation=observation, returned=episode[0], length=episode[1], discounted=episode[2],
            totals=tell(shard.totals, seen, update), fault=find_fault(seen, observation), first=first,
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
        totals = Seen(
            None if observations is None else raw, seen, parameters, action, reward, terminated.astype(jnp.float32),
            ended.astype(jnp.float32), value, is_final.astype(jnp.float32), returned, length, grown,
        )  # fmt: skip
        new = [jnp.where(ended, jnp.zeros_like(x), x) for x in (returned, length)]
        new.append(discounted if grown is None else jnp.where(ended, 0.0, grown))
        return (state, observation, *new), totals


def _like(flags: Array, rows: Array) -> Array:
    """[B] as `rows` [B, ...] needs it to choose by."""
    return jnp.broadcast_to(flags.reshape(-1, *(1 for _ in rows.shape[1:])), rows.shape)


def _columns_first(params: Params) -> Params:
    """The same numbers; matrices lie in memory as a product with rows reads them: turned once, not in every step."""
    return {name: jax.lax.optimization_barrier(x.T).T if x.ndim == 2 else x for name, x in params.items()}


def _clipper(spec: Any) -> Any:
    """As `lockstep.experience.rollout.clipper`."""
    if spec.action.kind != "continuous":
        return lambda action: action
    low, high = np.array(spec.action.low, np.float32), np.array(spec.action.high, np.float32)

    def clip(action: Array) -> Array:
        bounds = (jnp.broadcast_to(bound, action.shape) for bound in (low, high))
        return jnp.clip(jnp.where(jnp.isfinite(action), action, 0.0), *bounds)

    return clip
