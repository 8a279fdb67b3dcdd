"""An environment on the device whose states are plain arrays of fixed types, for loops and for checkpoints."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from lockstep.envs.spec import EnvSpec
from lockstep.jax.envs.interface import DeviceEnv

Packed = tuple[Array, ...]
"""The leaves of a state; keys among them as numbers."""


class PackedEnv:
    """Another environment, its states as tuples of arrays that have the same types after `reset` and after `step`.

    Environments may begin with Python's numbers and go on with arrays, or carry random keys; loops and numpy cannot.
    Attributes: `env`, the other one, and its `spec`.
    """

    def __init__(self, env: DeviceEnv) -> None:
        self.env = env
        self.spec: EnvSpec = env.spec
        action = jax.ShapeDtypeStruct(*action_type(env.spec))
        key = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))
        first = jax.eval_shape(env.reset, key)
        after = jax.eval_shape(env.step, first, action, key)[0]
        leaves, self._structure = jax.tree.flatten(after)
        self._types = [None if _is_key(leaf) else jnp.result_type(leaf) for leaf in leaves]
        if jax.tree.structure(first) != self._structure:
            raise ValueError("a state has another structure after `step` than after `reset`")

    def reset(self, key: Array) -> Packed:
        """As the other's."""
        return self._pack(self.env.reset(key))

    def observe(self, state: Packed) -> Array:
        """As the other's."""
        return jnp.asarray(self.env.observe(self._unpack(state)), self.spec.observation_dtype)

    def step(self, state: Packed, action: Array, key: Array) -> tuple[Packed, Array, Array, Array, Array]:
        """As the other's, of exact types."""
        after, seen, reward, terminated, truncated = self.env.step(self._unpack(state), action, key)
        return (
            self._pack(after),
            jnp.asarray(seen, self.spec.observation_dtype),
            jnp.asarray(reward, jnp.float32),
            jnp.asarray(terminated, jnp.bool_),
            jnp.asarray(truncated, jnp.bool_),
        )

    def _pack(self, state: Any) -> Packed:
        leaves = zip(jax.tree.leaves(state), self._types, strict=True)
        return tuple(jax.random.key_data(x) if kind is None else jnp.asarray(x, kind) for x, kind in leaves)

    def _unpack(self, state: Packed) -> Any:
        leaves = zip(state, self._types, strict=True)
        return jax.tree.unflatten(self._structure, [unpacked(x) if kind is None else x for x, kind in leaves])


def unpacked(key: Array) -> Array:
    """A random key from its numbers, uint32 `[..., 2]`; counter-based (Threefry; Salmon et al., 2011)."""
    return jax.random.wrap_key_data(key, impl="threefry2x32")


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def action_type(spec: EnvSpec) -> tuple[tuple[int, ...], Any]:
    """Shape and type of one action."""
    shape = () if spec.action.kind == "discrete" else (spec.action.width,)
    return shape, jnp.float32 if spec.action.kind == "continuous" else jnp.int32
