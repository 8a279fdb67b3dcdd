"""Environments in JAX that do what tests ask for."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.jax.envs.interface import Observation


class DriftState(NamedTuple):
    position: jax.Array
    steps: jax.Array


class Drift:
    """A number that is pushed and shaken. It may leave [-1, 1], which ends an episode, or the episode is cut.

    The second number of an observation is the part of the episode's steps that is behind, times `scale`; or `constant`.
    """

    on_device = True

    def __init__(
        self, *, max_episode_steps=20, continuous=False, push=0.1, spoil="", spoil_at=-1, scale=1.0, constant=None
    ):
        action = ActionSpec("continuous", (1,), (-1.0,), (1.0,)) if continuous else ActionSpec("discrete", (2,))
        self.spec = EnvSpec(
            observation_size=2,
            action=action,
            autoreset="same_step",
            separately_seedable=True,
            max_episode_steps=max_episode_steps,
        )
        self.scale, self.constant = scale, constant
        self.limit, self.continuous, self.push, self.spoil, self.spoil_at = (
            max_episode_steps, continuous, push, spoil, spoil_at,
        )  # fmt: skip

    def reset(self, key):
        return DriftState(jax.random.uniform(key, (), jnp.float32, -0.5, 0.5), 0)  # a plain number, as others do it

    def observe(self, state):
        behind = self.scale * jnp.asarray(state.steps, jnp.float32) / self.limit
        return jnp.stack([state.position, behind if self.constant is None else jnp.float32(self.constant)])

    def step(self, state, action, key):
        force = action[0] if self.continuous else 2.0 * action - 1.0
        position = state.position + self.push * force + 0.1 * jax.random.normal(key, (), jnp.float32)
        steps = state.steps + 1
        reward = 1.0 - jnp.square(position)
        spoiled = steps == self.spoil_at
        reward = jnp.where(spoiled & (self.spoil == "reward"), jnp.nan, reward)
        seen = self.observe(DriftState(position, steps))
        bad = spoiled & (self.spoil == "observation")
        if self.spec.image is None:
            seen = jax.tree.map(lambda numbers: jnp.where(bad, jnp.inf, numbers), seen)
        return DriftState(position, steps), seen, reward, jnp.abs(position) > 1.0, steps >= self.limit


class SeenDrift(Drift):
    """The policy observes a picture, whose left part is as bright as the number is large; the value network numbers."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.spec = replace(self.spec, observation_size=36 * 36, image=(1, 36, 36), critic_size=2)

    def observe(self, state):
        critic = super().observe(state)
        bright = jnp.clip(128 + 127 * critic[0], 0, 255).astype(jnp.uint8)
        return Observation(jnp.zeros((1, 36, 36), jnp.uint8).at[:, :, :18].set(bright), critic)


class GroupedDrift(Drift):
    """The value network observes three other numbers, which are far from 0 and 1."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.spec = replace(self.spec, critic_size=3)

    def observe(self, state):
        policy = super().observe(state)
        critic = jnp.stack([100 + 20 * policy[0], 5 * policy[1], policy[0] * policy[1]])
        if self.spoil == "critic":
            critic = jnp.where(state.steps == self.spoil_at, jnp.nan, critic)
        return Observation(policy, critic)
