"""Environments written in JAX as a `VectorEnv` on the host: for evaluation, DQN, and torch."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from lockstep.config.env import EnvConfig
from lockstep.envs.vector import Step
from lockstep.jax.envs.interface import Observation
from lockstep.jax.envs.make import make_device_env
from lockstep.jax.envs.packed import Packed, PackedEnv, select_rows, wrap_key

_BITS = 32


class HostEnv:
    """Environments stepped together by one compiled call on this process' first CPU; `same_step` autoreset.

    Nothing is compiled before the first `reset`.
    """

    def __init__(self, env: PackedEnv, num_envs: int) -> None:
        self.spec, self.num_envs = env.spec, num_envs
        self._reset_compiled, self._step_compiled = _compiled(env)
        self._keys = np.zeros((num_envs, 2), np.uint32)
        self._state: Packed = ()
        self._steps = np.zeros((), np.uint32)
        self._critic: tuple[np.ndarray, np.ndarray | None] = np.zeros((num_envs, 0), np.float32), None

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Start new episodes, each environment from its own seed."""
        self._keys = np.array([divmod(int(seed), 1 << _BITS) for seed in seeds], np.uint32)
        self._steps = np.zeros((), np.uint32)
        with _on_cpu():
            self._state, observation = self._reset_compiled(self._keys)
        first = jax.tree.map(np.array, observation)
        self._critic = first.critic, None
        return first.policy

    def step(self, action: np.ndarray) -> Step:
        """Step all environments; ended episodes are reset in the same step."""
        dtype = np.float32 if self.spec.action.kind == "continuous" else np.int32
        with _on_cpu():
            self._state, *outputs = self._step_compiled(self._keys, self._state, np.asarray(action, dtype), self._steps)
        self._steps = self._steps + np.uint32(1)
        observation, reward, terminated, truncated, final = jax.tree.map(np.array, tuple(outputs))
        self._critic = observation.critic, final.critic
        return observation.policy, reward, terminated, truncated, final.policy

    def critic_observation(self) -> tuple[np.ndarray, np.ndarray | None]:
        """See `lockstep.envs.vector.CriticEnv`."""
        return self._critic

    def state(self) -> dict[str, Any]:
        """The complete state."""
        return {"keys": self._keys, "steps": self._steps, "state": [np.array(leaf) for leaf in self._state]}

    def restore(self, state: dict[str, Any]) -> None:
        """Load `state()`."""
        self._keys, self._steps = np.array(state["keys"], np.uint32), np.array(state["steps"], np.uint32)
        leaves = zip(state["state"], self._state, strict=True)
        self._state = tuple(np.asarray(new, old.dtype) for new, old in leaves)  # pyright: ignore[reportAttributeAccessIssue]

    def close(self) -> None:
        """Nothing to free."""


@functools.cache
def _compiled(env: PackedEnv) -> tuple[Any, Any]:
    """The compiled reset and step functions, shared by all shards of a process."""
    return jax.jit(functools.partial(_reset_all, env)), jax.jit(functools.partial(_step_all, env))


def _reset_all(env: PackedEnv, keys: Array) -> tuple[Packed, Observation]:
    state = jax.vmap(env.reset)(jax.vmap(wrap_key)(keys))
    return state, jax.vmap(env.observe)(state)


def _step_all(env: PackedEnv, keys: Array, state: Packed, action: Array, steps: Array) -> tuple[Any, ...]:
    """Step all environments with autoreset; randomness is keyed by the environment's key and the step number."""
    folded = jax.vmap(jax.random.fold_in, (0, None))(jax.vmap(wrap_key)(keys), steps)
    now, later = jax.vmap(lambda key: tuple(jax.random.split(key)), out_axes=0)(folded)
    state, final, reward, terminated, truncated = jax.vmap(env.step)(state, action, now)
    ended = terminated | truncated

    def begin() -> tuple[Packed, Observation]:
        new = jax.vmap(env.reset)(later)
        return select_rows(ended, new, state), select_rows(ended, jax.vmap(env.observe)(new), final)

    after, observation = jax.lax.cond(ended.any(), begin, lambda: (state, final))
    return after, observation, reward, terminated, truncated, final


def make(task: str, config: EnvConfig, num_envs: int) -> HostEnv:
    """The environments of a shard, of a task written in JAX."""
    key = task, repr(config)
    if key not in _env_cache:
        _env_cache[key] = PackedEnv(make_device_env(task, config))
    return HostEnv(_env_cache[key], num_envs)


_env_cache: dict[tuple[str, str], PackedEnv] = {}  # pure functions, shared by all shards and evaluations


def _on_cpu() -> Any:
    return jax.default_device(jax.local_devices(backend="cpu")[0])
