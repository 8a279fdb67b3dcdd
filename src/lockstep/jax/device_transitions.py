"""A shard's transitions for SAC and TD3 as one pure function, for environments on the device.

Shapes: T steps, B environments of a shard, O observation, D dimensions of an action.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from lockstep.jax.batch import Steps
from lockstep.jax.continuous_policy import ContinuousPolicy
from lockstep.jax.device_replay import TransitionRows, end_of
from lockstep.jax.device_shard import (
    RandomDraws,
    Shard,
    StepRecord,
    add_episodes,
    all_numbers_finite,
    checksum,
    clipper,
    env_keys,
    find_non_finite,
)
from lockstep.jax.envs.interface import Observation
from lockstep.jax.envs.packed import Packed, PackedEnv, select_rows, wrap_key
from lockstep.jax.flat import Params


class TransitionRollout:
    """Steps the environments of a shard with an actor; pure functions.

    Args:
        env: one environment.
        policy: the actor.
        num_steps: T.
        shard_envs: B.
    """

    def __init__(self, env: PackedEnv, policy: ContinuousPolicy, num_steps: int, shard_envs: int) -> None:
        self._env, self._policy = env, policy
        self._num_steps, self._size = num_steps, shard_envs
        self._clip = clipper(env.spec.action)

    def rollout(self, actor: Params, shard: Shard, update: Array, random: Array) -> tuple[Shard, TransitionRows]:
        """Step every environment T times.

        Args:
            actor: its parameters.
            shard: before the rollout.
            update: number of the update, which with the shard's keys determines all randomness.
            random: bool: whether actions are uniformly random within their bounds.
        """
        start = (shard.state, shard.observation, shard.returned, shard.length)
        drawn = self._draw(shard, update, random)
        (state, observation, returned, length), (seen, steps) = jax.lax.scan(
            lambda carry, one: self._step(actor, random, carry, one), start, drawn
        )
        whole = Steps(
            jnp.concatenate([seen.observation.policy, observation.policy[None]]), seen.action, seen.reward,
            seen.terminated, seen.ended, jnp.ones_like(seen.reward), seen.final_value, seen.is_final,
        )  # fmt: skip
        first = jax.lax.cond(update == 0, lambda: checksum(whole, drawn.noise), lambda: shard.first)
        shard = shard._replace(
            state=state, observation=observation, returned=returned, length=length, first=first,
            totals=add_episodes(shard.totals, seen, update), fault=find_non_finite(seen, observation),
        )  # fmt: skip
        return shard, steps

    def _draw(self, shard: Shard, update: Array, random: Array) -> RandomDraws:
        key = jax.random.fold_in(wrap_key(shard.action_key), update)
        shape = (self._num_steps, self._size, self._policy.spec.action.width)
        noise = jax.lax.cond(
            random,
            lambda: jax.random.uniform(key, shape, jnp.float32, -1.0, 1.0),
            lambda: jax.random.normal(key, shape, jnp.float32),
        )
        return RandomDraws(noise, *env_keys(shard, update, self._num_steps))

    def _step(
        self, actor: Params, random: Array, carry: tuple[Any, ...], drawn: RandomDraws
    ) -> tuple[tuple[Any, ...], tuple[StepRecord, TransitionRows]]:
        """Step every environment; ended episodes are reset in the same step."""
        policy = self._policy
        state, seen, returned, length = carry
        action = policy.act(actor, seen.policy, drawn.noise)
        action = jnp.where(random, policy.unscaled(drawn.noise), jnp.where(jnp.isfinite(action), action, 0.0))
        state, final, reward, terminated, truncated = jax.vmap(self._env.step)(state, self._clip(action), drawn.step)
        ended, is_final = terminated | truncated, truncated & ~terminated

        def begin() -> tuple[Packed, Observation]:
            new = jax.vmap(self._env.reset)(drawn.reset)
            return select_rows(ended, new, state), select_rows(ended, jax.vmap(self._env.observe)(new), final)

        # Resets are rare and expensive, so they run only in steps in which an episode ended.
        state, observation = jax.lax.cond(ended.any(), begin, lambda: (state, final))
        counted = jnp.where(jnp.isfinite(reward), reward, 0.0)
        returned, length = returned + counted, length + 1
        record = StepRecord(
            None, seen, action, action, reward, terminated.astype(jnp.float32), ended.astype(jnp.float32),
            jnp.where(all_numbers_finite(final), 0.0, jnp.nan), is_final.astype(jnp.float32),
            returned, length, None,
        )  # fmt: skip
        # What follows a termination has no value: it is not stored, since it may be not finite.
        following = jnp.where(terminated[:, None], seen.policy, final.policy)
        steps = TransitionRows(seen.policy, action, reward, following, end_of(terminated, truncated))
        returned, length = (jnp.where(ended, jnp.zeros_like(x), x) for x in (returned, length))
        return (state, observation, returned, length), (record, steps)
