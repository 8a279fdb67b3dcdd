"""Environments with Brax's protocol: `reset(key)` and `step(state, action)`."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from lockstep.envs.load import near
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.jax.envs.interface import Observation, Seen, State

POLICY, CRITIC = "state", "privileged_state"
"""Groups of an observation that is a dict, as Brax's and MuJoCo Playground's own training names them."""
_ONLY = "observation"
"""Name of the group of an observation that is one vector."""


class BraxLike:
    """One environment; actions lie in [-1, 1].

    Args:
        env: the environment, which observes a vector or a dict of vectors, its groups.
        max_episode_steps: limit of an episode.
        policy_keys: groups that the policy receives, joined in this order; empty: `state` if there is one, else all.
        critic_keys: groups that the value network receives; empty: `privileged_state` if there is one, else those of
            the policy.
        action_repeat: steps of the simulation in one step, which returns the sum of their rewards.
    """

    on_device = True

    def __init__(
        self,
        env: Any,
        max_episode_steps: int,
        policy_keys: Sequence[str] = (),
        critic_keys: Sequence[str] = (),
        *,
        action_repeat: int = 1,
    ) -> None:
        sizes = _sizes(env.observation_size)
        self._policy = tuple(policy_keys) or ((POLICY,) if POLICY in sizes else tuple(sizes))
        critic = tuple(critic_keys) or ((CRITIC,) if CRITIC in sizes else self._policy)
        _check_groups("policy_keys", self._policy, sizes)
        _check_groups("critic_keys", critic, sizes)
        self._critic = () if critic == self._policy else critic
        self._env, self._limit, self._size = env, max_episode_steps, env.action_size
        self._repeat = action_repeat
        self.spec = EnvSpec(
            observation_size=sum(sizes[key] for key in self._policy),
            action=ActionSpec("continuous", (self._size,), (-1.0,) * self._size, (1.0,) * self._size),
            autoreset="same_step",
            separately_seedable=True,
            max_episode_steps=max_episode_steps,
            critic_size=sum(sizes[key] for key in self._critic) or None,
        )

    def reset(self, key: Array) -> State:
        """State of the simulation, and steps of the episode."""
        return self._env.reset(jax.random.key_data(key)), jnp.zeros((), jnp.int32)

    def observe(self, state: State) -> Seen:
        """The chosen groups of the observation in the state."""
        groups = state[0].obs if isinstance(state[0].obs, Mapping) else {_ONLY: state[0].obs}
        policy = _joined(groups, self._policy)
        return Observation(policy, _joined(groups, self._critic)) if self._critic else policy

    def step(self, state: State, action: Array, key: Array) -> tuple[State, Seen, Array, Array, Array]:
        """One step; its randomness comes from the state."""
        del key
        after, reward = self._advance(state[0], action)
        steps = state[1] + 1
        return (after, steps), self.observe((after, steps)), reward, after.done > 0, steps >= self._limit

    def _advance(self, before: Any, action: Array) -> tuple[Any, Array]:
        """The state of the simulation after one step, and its reward."""
        if self._repeat == 1:
            after = self._env.step(before, action)
            return after, after.reward

        def once(state: Any, _: None) -> tuple[Any, Array]:
            after = self._env.step(state, action)
            return after, after.reward

        after, rewards = jax.lax.scan(once, before, None, self._repeat)
        return after, rewards.sum()


def _joined(groups: Mapping[str, Array], keys: Sequence[str]) -> Array:
    return jnp.concatenate([groups[key] for key in keys])


def _sizes(size: Any) -> dict[str, int]:
    """Numbers of each group: `size` is one number, or a number or a shape of each group."""
    found: dict[str, int] = {}
    for name, shape in (size if isinstance(size, Mapping) else {_ONLY: size}).items():
        match shape:
            case int(number) | [int(number)]:
                found[name] = number
            case _:
                raise ConfigError(f"its observation {name} has the size {shape}; a vector of numbers is needed")
    return found


def _check_groups(setting: str, keys: Sequence[str], sizes: Mapping[str, int]) -> None:
    """Refuse groups that do not exist."""
    for key in keys:
        if key not in sizes:
            raise ConfigError(
                f"env.{setting}={list(keys)}: there is no group {key!r} among {', '.join(sizes)}"
                f"{near(key, list(sizes))}"
            )
