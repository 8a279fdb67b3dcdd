"""Environments whose states are flat tuples of arrays of fixed types, for compiled loops and checkpoints."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from lockstep.envs.spec import EnvSpec
from lockstep.jax.envs.interface import DeviceEnv, Observation, Seen

Packed = tuple[Array, ...]
"""The leaves of a state, with random keys as uint32 arrays."""
_Tree = TypeVar("_Tree")


class PackedEnv:
    """Wraps an environment; states have the same types after `reset` and after `step`.

    An environment may return Python numbers from `reset` and arrays from `step`, or carry random keys, which compiled
    loops and numpy do not support.

    Attributes:
        env: the wrapped environment.
        spec: of it.
    """

    def __init__(self, env: DeviceEnv) -> None:
        self.env = env
        self.spec: EnvSpec = env.spec
        action = jax.ShapeDtypeStruct(*action_type(env.spec))
        key = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))
        first = jax.eval_shape(env.reset, key)
        after = jax.eval_shape(env.step, first, action, key)[0]
        leaves, self._structure = jax.tree.flatten(after)
        self._types = [None if is_key(leaf) else jnp.result_type(leaf) for leaf in leaves]
        self._key_impls = [_key_impl(leaf) if is_key(leaf) else None for leaf in leaves]
        if jax.tree.structure(first) != self._structure:
            raise ValueError("a state has another structure after `step` than after `reset`")

    def reset(self, key: Array) -> Packed:
        """The packed state of `env.reset`."""
        return self._pack(self.env.reset(key))

    def observe(self, state: Packed) -> Observation:
        """The observation of a packed state, of the spec's types."""
        return self._observation(self.env.observe(self._unpack(state)))

    def step(self, state: Packed, action: Array, key: Array) -> tuple[Packed, Observation, Array, Array, Array]:
        """`env.step` with packed states, and outputs of exact types."""
        after, observation, reward, terminated, truncated = self.env.step(self._unpack(state), action, key)
        return (
            self._pack(after),
            self._observation(observation),
            jnp.asarray(reward, jnp.float32),
            jnp.asarray(terminated, jnp.bool_),
            jnp.asarray(truncated, jnp.bool_),
        )

    def _observation(self, seen: Seen) -> Observation:
        policy, critic = seen if isinstance(seen, Observation) else (seen, None)
        policy = jnp.asarray(policy, self.spec.observation_dtype)
        return Observation(policy, None if critic is None else jnp.asarray(critic, jnp.float32))

    def _pack(self, state: Any) -> Packed:
        leaves = zip(jax.tree.leaves(state), self._types, strict=True)
        return tuple(jax.random.key_data(x) if kind is None else jnp.asarray(x, kind) for x, kind in leaves)

    def _unpack(self, state: Packed) -> Any:
        leaves = zip(state, self._key_impls, strict=True)
        unpacked = [x if impl is None else jax.random.wrap_key_data(x, impl=impl) for x, impl in leaves]
        return jax.tree.unflatten(self._structure, unpacked)


def wrap_key(key: Array) -> Array:
    """The random key with the bits uint32 `[..., 2]`; counter-based (Threefry; Salmon et al., 2011)."""
    return jax.random.wrap_key_data(key, impl="threefry2x32")


def select_rows(flags: Array, x: _Tree, y: _Tree) -> _Tree:
    """Rows [B, ...] of the arrays of `x` where `flags` [B], else of `y`."""

    def chosen(x: Array, y: Array) -> Array:
        return jnp.where(jnp.broadcast_to(flags.reshape(-1, *(1 for _ in x.shape[1:])), x.shape), x, y)

    return jax.tree.map(chosen, x, y)


def is_key(leaf: Any) -> bool:
    """Whether a leaf of a state, or its shape and type, is a typed random key."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _key_impl(leaf: Any) -> Any:
    """The generator of a typed random key, of which shape and type are known."""
    found: list[Any] = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), leaf)
    return found[0]


def action_type(spec: EnvSpec) -> tuple[tuple[int, ...], Any]:
    """Shape and type of one action."""
    shape = () if spec.action.kind == "discrete" else (spec.action.width,)
    return shape, jnp.float32 if spec.action.kind == "continuous" else jnp.int32
