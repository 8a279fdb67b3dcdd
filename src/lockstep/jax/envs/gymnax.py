"""`gymnax/NAME`: environments of gymnax (Lange, 2022, https://github.com/RobertTLange/gymnax)."""

import importlib
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.envs.load import near
from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.errors import ConfigError
from lockstep.jax.envs.interface import State

# Imported by name, so that type checks do not need it installed.
gymnax: Any = importlib.import_module("gymnax")


def maker(name: str) -> Callable[..., "Gymnax"]:
    """A factory of a gymnax environment; its keyword arguments are gymnax's environment parameters."""
    known = list(gymnax.registered_envs)
    if name not in known:
        raise ConfigError(f"gymnax has no environment {name}{near(name, known)}")
    return lambda **kwargs: Gymnax(name, kwargs)


class Gymnax:
    """One gymnax environment, without gymnax's autoreset."""

    on_device = True

    def __init__(self, name: str, changes: dict[str, Any]) -> None:
        self._env, params = gymnax.make(name)
        limit = changes.pop("max_episode_steps", None)
        if limit is not None:
            changes["max_steps_in_episode"] = limit
        for key in changes:
            if not hasattr(params, key):
                known = [field for field in vars(params) if not field.startswith("_")]
                raise ConfigError(f"env.kwargs {key} is unknown to gymnax/{name}{near(key, known)}")
        self._params = params.replace(**changes)
        action, space = self._env.action_space(self._params), self._env.observation_space(self._params)
        shape = getattr(space, "shape", None)
        if shape is None:
            raise ConfigError(f"gymnax/{name} observes {type(space).__name__}; only arrays are supported")
        self._choices = int(space.n) if hasattr(space, "n") else None
        self.spec = EnvSpec(
            observation_size=self._choices or math.prod(shape),
            action=_action_spec(action, name),
            autoreset="same_step",
            separately_seedable=True,
            max_episode_steps=int(self._params.max_steps_in_episode),
        )

    def reset(self, key: Array) -> State:
        """The state and its observation, because gymnax returns observations only together with new states."""
        seen, state = self._env.reset_env(key, self._params)
        return state, self._flat(seen)

    def observe(self, state: State) -> Array:
        """The observation in the state, float32 [O]."""
        return state[1]

    def step(self, state: State, action: Array, key: Array) -> tuple[State, Array, Array, Array, Array]:
        """One step."""
        if self.spec.action.shape is not None:
            action = action.reshape(self.spec.action.shape)
        seen, after, reward, terminated, _ = self._env.step_env(key, state[0], action, self._params)
        truncated = self._env.is_truncated(after, self._params)
        flat = self._flat(seen)
        return (after, flat), flat, jnp.asarray(reward, jnp.float32).reshape(()), terminated, truncated

    def _flat(self, seen: Any) -> Array:
        """An observation as float32 [O]; a choice is one-hot."""
        if self._choices is not None:
            return jax.nn.one_hot(seen, self._choices, dtype=jnp.float32)
        return jnp.asarray(seen, jnp.float32).reshape(-1)


def _action_spec(space: Any, name: str) -> ActionSpec:
    """The action space as an `ActionSpec`."""
    if hasattr(space, "n"):
        return ActionSpec("discrete", (int(space.n),))
    if hasattr(space, "low"):
        low, high = (
            tuple(map(float, np.broadcast_to(np.asarray(bound), space.shape).ravel()))
            for bound in (space.low, space.high)
        )
        shape = None if len(space.shape) == 1 else tuple(space.shape)
        return ActionSpec("continuous", (len(low),), low, high, shape=shape)
    raise ConfigError(f"gymnax/{name} takes actions of {type(space).__name__}, which no policy here can produce")
