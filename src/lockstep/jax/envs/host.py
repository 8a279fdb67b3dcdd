"""Environments on the device as a `VectorEnv` of the host: for evaluation, for DQN, and for torch."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.config.env import EnvConfig
from lockstep.envs.vector import Step
from lockstep.jax.envs.make import make_device_env
from lockstep.jax.envs.packed import Packed, PackedEnv, unpacked

_BITS = 32


class HostEnv:
    """Environments stepped together by one compiled call on this process' first CPU; `same_step` autoreset.

    Nothing is compiled before the first `reset`.
    """

    def __init__(self, env: PackedEnv, num_envs: int) -> None:
        self.spec, self.num_envs = env.spec, num_envs
        self._begin, self._advance = _compiled(env)
        self._keys = np.zeros((num_envs, 2), np.uint32)
        self._state: Packed = ()
        self._steps = np.zeros((), np.uint32)

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Begin new episodes, each environment from its own seed."""
        self._keys = np.array([divmod(int(seed), 1 << _BITS) for seed in seeds], np.uint32)
        self._steps = np.zeros((), np.uint32)
        with _on_cpu():
            self._state, observation = self._begin(self._keys)
        return np.array(observation)

    def step(self, action: np.ndarray) -> Step:
        """Step all; where an episode ends, the next begins."""
        kind = np.float32 if self.spec.action.kind == "continuous" else np.int32
        with _on_cpu():
            self._state, *reported = self._advance(self._keys, self._state, np.asarray(action, kind), self._steps)
        self._steps = self._steps + np.uint32(1)
        observation, reward, terminated, truncated, final = (np.array(x) for x in reported)
        return observation, reward, terminated, truncated, final

    def state(self) -> dict[str, Any]:
        """Everything that decides what comes next."""
        return {"keys": self._keys, "steps": self._steps, "state": [np.array(leaf) for leaf in self._state]}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""
        self._keys, self._steps = np.array(state["keys"], np.uint32), np.array(state["steps"], np.uint32)
        held = zip(state["state"], self._state, strict=True)
        self._state = tuple(np.asarray(new, old.dtype) for new, old in held)  # pyright: ignore[reportAttributeAccessIssue]

    def close(self) -> None:
        """Nothing to free."""


@functools.cache
def _compiled(env: PackedEnv) -> tuple[Any, Any]:
    """What begins and what steps environments: compiled once for all shards of a process."""
    return jax.jit(functools.partial(_first, env)), jax.jit(functools.partial(_next, env))


def _first(env: PackedEnv, keys: Array) -> tuple[Packed, Array]:
    state = jax.vmap(env.reset)(jax.vmap(unpacked)(keys))
    return state, jax.vmap(env.observe)(state)


def _next(env: PackedEnv, keys: Array, state: Packed, action: Array, steps: Array) -> tuple[Any, ...]:
    """A step's randomness comes from each environment's key and the number of the step."""
    folded = jax.vmap(jax.random.fold_in, (0, None))(jax.vmap(unpacked)(keys), steps)
    now, later = jax.vmap(lambda key: tuple(jax.random.split(key)), out_axes=0)(folded)
    state, final, reward, terminated, truncated = jax.vmap(env.step)(state, action, now)
    ended = terminated | truncated

    def begin() -> tuple[Packed, Array]:
        new = jax.vmap(env.reset)(later)
        seen = jax.vmap(env.observe)(new)
        return tuple(_where(ended, x, y) for x, y in zip(new, state, strict=True)), _where(ended, seen, final)

    after, observation = jax.lax.cond(ended.any(), begin, lambda: (state, final))
    return after, observation, reward, terminated, truncated, final


def make(task: str, config: EnvConfig, num_envs: int) -> HostEnv:
    """The environments of a shard, of a task on the device."""
    key = task, repr(config)
    if key not in _made:
        _made[key] = PackedEnv(make_device_env(task, config))
    return HostEnv(_made[key], num_envs)


_made: dict[tuple[str, str], PackedEnv] = {}  # they are pure functions: shards, and evaluations, can share one


def _where(flags: Array, x: Array, y: Array) -> Array:
    return jnp.where(jnp.broadcast_to(flags.reshape(-1, *(1 for _ in x.shape[1:])), x.shape), x, y)


def _on_cpu() -> Any:
    return jax.default_device(jax.local_devices(backend="cpu")[0])
