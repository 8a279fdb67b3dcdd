"""A shard's rollout as one pure function, for environments on the device.

Shapes: T steps, B environments of a shard, O and C numbers of the policy's and of the critic's observation, P
parameters of the action distribution, S numbers of a recurrent policy's state, of which the actor has the first A.
"""

from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array

from lockstep.experience.normalize import LIMIT
from lockstep.jax.batch import Steps
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
    first_shard,
)
from lockstep.jax.envs.interface import Observation
from lockstep.jax.envs.packed import Packed, PackedEnv, select_rows, wrap_key
from lockstep.jax.flat import Params, subtree
from lockstep.jax.moments import Moments
from lockstep.jax.networks import Policy
from lockstep.jax.recurrent import finite_state
from lockstep.jax.symmetry import Symmetry

_NORMALIZERS = ("observations", "critic_observations")
"""Of the groups of an `Observation`."""


class DeviceRollout:
    """Steps the environments of a shard with a policy; pure functions.

    Args:
        env: one environment.
        policy: the network and the distribution.
        num_steps: T.
        shard_envs: B.
        gamma: discount, for the normalizer of returns.
        reward_scale: multiplies rewards before anything learns from them.
        observation_limit: of normalized observations, in standard deviations.
        symmetry: adds mirrored copies, if there is one.
    """

    def __init__(  # noqa: PLR0913  # everything a rollout needs, once, by keyword
        self,
        env: PackedEnv,
        policy: Policy,
        *,
        num_steps: int,
        shard_envs: int,
        gamma: float,
        reward_scale: float = 1.0,
        observation_limit: float = LIMIT,
        symmetry: Symmetry | None = None,
    ) -> None:
        self._env, self._policy = env, policy
        self._num_steps, self._size, self._gamma = num_steps, shard_envs, gamma
        self._reward_scale = reward_scale
        self._limit = observation_limit
        self._symmetry = symmetry
        self._clip = clipper(env.spec.action)

    def begin(self, keys: Array, action_key: Array, order_key: Array) -> Shard:
        """The shard with new episodes in all environments."""
        return first_shard(self._env, keys, action_key, order_key, self._policy.state_size)

    def rollout(
        self, params: Params, normalizers: Mapping[str, Moments], shard: Shard, update: Array
    ) -> tuple[Shard, Steps, Array]:
        """Step every environment T times.

        Args:
            params: of the policy.
            normalizers: `observations`, `critic_observations` and `returns`, if in use; frozen.
            shard: before the rollout.
            update: number of the update, which with the shard's keys determines all randomness.

        Returns:
            The shard after the rollout, the rollout, and the shard's sums for the normalizers, in their order.
        """
        params = _columns_first(params)
        drawn = self._draw(shard, update)
        episode = (shard.returned, shard.length, shard.discounted)
        actor_memory = shard.memory[:, : self._policy.actor_state_size]
        start = (shard.state, shard.observation, actor_memory, *episode)
        (state, observation, actor_memory, *episode), seen = jax.lax.scan(
            lambda carry, one: self._step(params, normalizers, carry, one), start, drawn
        )
        reward, sums = seen.reward * self._reward_scale, list[Array]()
        raw = seen.observation if seen.raw is None else seen.raw
        for name, rows in zip(_NORMALIZERS, raw, strict=True):
            if name in normalizers and rows is not None:
                sums.append(normalizers[name].sums(rows.reshape(-1, rows.shape[-1])))
        last = self._normalized(normalizers, observation)
        whole = jax.tree.map(lambda rows, end: jnp.concatenate([rows, end[None]]), seen.observation, last)
        if "returns" in normalizers:
            assert seen.discounted is not None
            sums.append(normalizers["returns"].sums(seen.discounted.reshape(-1, 1)))
            reward = normalizers["returns"].scale(reward)
        steps = Steps(
            whole.policy, seen.action, reward, seen.terminated, seen.ended,
            jnp.ones_like(reward), seen.final_value, seen.is_final, seen.parameters,
            critic=whole.critic,
        )  # fmt: skip
        if self._symmetry is not None:
            copies, action = self._symmetry.mirrored([rows for rows in raw if rows is not None], seen.action)
            mirrored = self._normalized(normalizers, Observation(*copies))
            steps = steps._replace(
                mirrored_observation=mirrored.policy, mirrored_action=action, mirrored_critic=mirrored.critic
            )
        if self._policy.state_size > 0:
            assert seen.final is not None
            # Episodes that begin at the first step have a state of 0 already.
            begins = jnp.concatenate([jnp.zeros((1, self._size), jnp.float32), seen.ended])
            steps = steps._replace(
                state=shard.memory, begins=begins, final=seen.final.policy,
                final_critic=seen.final.critic,
            )  # fmt: skip
            actor_memory = finite_state(actor_memory)
            shard = shard._replace(memory=shard.memory.at[:, : self._policy.actor_state_size].set(actor_memory))
        first = jax.lax.cond(update == 0, lambda: checksum(steps, drawn.noise), lambda: shard.first)
        shard = shard._replace(
            state=state, observation=observation, returned=episode[0], length=episode[1], discounted=episode[2],
            totals=add_episodes(shard.totals, seen, update), fault=find_non_finite(seen, observation), first=first,
        )  # fmt: skip
        return shard, steps, jnp.concatenate(sums) if sums else jnp.zeros(0, jnp.float32)

    def remember(self, shard: Shard, steps: Steps, critic_memory: Array) -> Shard:
        """The shard after a rollout, with the critic's state [B, S - A] after it, 0 where the next episode begins."""
        begun = jnp.where(steps.ended[-1][:, None] > 0, 0.0, critic_memory)
        return shard._replace(memory=shard.memory.at[:, self._policy.actor_state_size :].set(begun))

    def _draw(self, shard: Shard, update: Array) -> RandomDraws:
        action_key = jax.random.fold_in(wrap_key(shard.action_key), update)
        noise = self._policy.distribution.draw_noise(action_key, (self._num_steps, self._size))
        return RandomDraws(noise, *env_keys(shard, update, self._num_steps))

    def _step(
        self, params: Params, normalizers: Mapping[str, Moments], carry: tuple[Any, ...], drawn: RandomDraws
    ) -> tuple[tuple[Any, ...], StepRecord]:
        """Step every environment; ended episodes are reset in the same step."""
        state, raw, memory, returned, length, discounted = carry
        seen = self._normalized(normalizers, raw)
        parameters, memory = self._act(params, seen.policy, memory)
        action = self._policy.distribution.sample(params, parameters, drawn.noise)
        state, final, reward, terminated, truncated = jax.vmap(self._env.step)(state, self._clip(action), drawn.step)
        ended, is_final = terminated | truncated, truncated & ~terminated
        none, recurrent = jnp.zeros(self._size, jnp.float32), self._policy.state_size > 0

        def begin() -> tuple[Packed, Observation, Array]:
            new = jax.vmap(self._env.reset)(drawn.reset)
            observation = select_rows(ended, jax.vmap(self._env.observe)(new), final)
            value = none if recurrent else self._value(params, self._normalized(normalizers, final))
            # A saturated layer, or the limit of normalized observations, would hide that the observation is not finite.
            return select_rows(ended, new, state), observation, jnp.where(all_numbers_finite(final), value, jnp.nan)

        # Resets are rare and expensive, so they run only in steps in which an episode ended.
        state, observation, value = jax.lax.cond(ended.any(), begin, lambda: (state, final, none))
        counted = jnp.where(jnp.isfinite(reward), reward, 0.0)
        returned, length = returned + counted, length + 1
        grown = self._gamma * discounted + self._reward_scale * counted if "returns" in normalizers else None
        totals = StepRecord(
            raw if "observations" in normalizers else None, seen, parameters, action, reward,
            terminated.astype(jnp.float32), ended.astype(jnp.float32), value, is_final.astype(jnp.float32),
            returned, length, grown, self._normalized(normalizers, final) if recurrent else None,
        )  # fmt: skip
        memory = jnp.where(ended[:, None], 0.0, memory)
        new = [jnp.where(ended, jnp.zeros_like(x), x) for x in (returned, length)]
        new.append(discounted if grown is None else jnp.where(ended, 0.0, grown))
        return (state, observation, memory, *new), totals

    def _act(self, params: Params, observation: Array, memory: Array) -> tuple[Array, Array]:
        """[B, O] and the actor's state [B, A] to distribution parameters [B, P] and the state after this step."""
        if self._policy.state_size > 0:
            return self._policy.recurrent.act(subtree(params, "network"), observation, memory)
        return self._policy.apply(params, observation)[0], memory

    def _value(self, params: Params, observation: Observation) -> Array:
        return self._policy.apply(params, observation.policy, critic=observation.critic)[1]

    def _normalized(self, normalizers: Mapping[str, Moments], observation: Observation) -> Observation:
        """Observations [..., O], and the critic's own [..., C], as the networks receive them."""
        parts = (
            rows if rows is None or name not in normalizers else normalizers[name].normalize(rows, self._limit)
            for name, rows in zip(_NORMALIZERS, observation, strict=True)
        )
        return Observation(*cast(Any, parts))


def _columns_first(params: Params) -> Params:
    """The parameters with matrices in the memory layout of a product with rows: transposed once, not in every step."""
    return {name: jax.lax.optimization_barrier(x.T).T if x.ndim == 2 else x for name, x in params.items()}
