"""Checks of what callers give to the collectives of JAX, the same on one device as on several."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.distributed import agreement
from lockstep.distributed.arguments import a_type, check_number
from lockstep.distributed.signature import layout_code
from lockstep.errors import ConfigError

Tree = Any


def check_float32(tree: Tree, tag: str) -> None:
    """Raise `ConfigError` for numbers that lose digits, or their imaginary part, in float32."""
    for name, leaf in _named(tree):
        kind = jnp.result_type(leaf)
        if kind == np.float64 or jnp.issubdtype(kind, np.complexfloating):
            out = "cast it to float32, or disable jax_enable_x64" if kind == np.float64 else "give its .real and .imag"
            raise ConfigError(f"{tag} was given {kind}{' in ' * bool(name)}{name} and computes in float32: {out}")


def rows(value: Any, num_slots: int, tag: str) -> Array:
    """The array [num_slots, n]. Raises `ConfigError` for another shape, and for numbers that are not exchanged."""
    checked = jnp.asarray(value)
    if checked.ndim != 2:
        raise ConfigError(f"rows has shape {list(checked.shape)}; give [K, n], one row for each slot of a device")
    check_number(len(checked), num_slots, each="slot of a device")
    check_exchanged(checked, tag)
    return checked


def weighed(value: Any, weight: Any) -> Array:
    """Rows [N, *F]. Raises `ConfigError` unless there is a weight for each, or none."""
    checked = jnp.asarray(value)
    if checked.ndim == 0:
        raise ConfigError("value has no rows: its shape is []; give [N, ...], as value.reshape(1)")
    if weight is not None and jnp.shape(weight) != checked.shape[:1]:
        raise ConfigError(
            f"weight has shape {list(jnp.shape(weight))} for {len(checked)} rows; give one weight for each row, "
            f"[{len(checked)}]"
        )
    return checked


def check_exchanged(value: Array, tag: str) -> None:
    """Raise `ConfigError` for numbers that devices do not exchange: complex ones, and those of 64 bits."""
    if jnp.issubdtype(value.dtype, np.complexfloating):
        raise ConfigError(f"{tag} was given {value.dtype}, and takes real numbers; give its .real and .imag")
    if value.dtype.itemsize > 4:
        narrower = "float32" if jnp.issubdtype(value.dtype, np.floating) else "int32"
        raise ConfigError(
            f"{tag} was given {value.dtype}, and takes numbers of at most 32 bits: cast it to {narrower}, or disable "
            "jax_enable_x64"
        )


def check_parts(parts: Any) -> None:
    """Raise `ConfigError` unless these are a sequence, one tree for each local shard."""
    if isinstance(parts, Mapping | str) or not isinstance(parts, Sequence):
        raise ConfigError(f"shard takes a list of one tree for each local shard, not {a_type(parts)}; give [tree]")


def pair(result: Any, name: str) -> tuple[Tree, Tree]:
    """The result of a function of `spmd`. Raises `ConfigError` unless it is a pair."""
    if not isinstance(result, tuple | list) or len(cast("Sequence[Any]", result)) != 2:
        raise ConfigError(
            f"{name} returned {a_type(result)} to spmd, which takes a pair; end it with return shared, own"
        )
    shared, own = cast("Sequence[Any]", result)
    return shared, own


def by_name(given: Any, tag: str) -> dict[str, Any]:
    """Arrays and numbers of a mapping, which may be nested, such as `actor.weight`, in the order of their names.

    Raises:
        ConfigError: there is no mapping, or something in it has no bits that can be compared.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"check_equal takes arrays by name, not {a_type(given)}; give {{'weight': weight}}")
    without_keys(given, tag)
    named: dict[str, Any] = {}
    leaves = cast(
        "list[tuple[Any, Any]]", jax.tree_util.tree_leaves_with_path(given, is_leaf=lambda leaf: leaf is None)
    )
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        known = isinstance(leaf, Array | np.ndarray | np.generic | int | float | complex)
        if not known or (not isinstance(leaf, Array) and np.asarray(leaf).dtype == object):  # one beyond 64 bits, too
            raise ConfigError(f"check_equal compares arrays and numbers, but {name} is {a_type(leaf)}; leave it out")
        if name in named:
            raise ConfigError(f"check_equal was given two arrays of the name {name}; rename one")
        named[name] = leaf
    return dict(sorted(named.items()))


def flag(value: Any) -> bool:
    """The boolean."""
    if (shape := np.shape(value)) and math.prod(shape) != 1:
        raise ConfigError(f"flag has shape {list(shape)}, but a rank has one flag; give flag.any()")
    return bool(value)


def without_keys(tree: Tree, method: str) -> Tree:
    """The tree. Raises `ConfigError` for typed random keys in it, which numpy, and so the host, cannot hold."""
    if not any(map(_is_key, jax.tree.leaves(tree))):  # names take much longer
        return tree
    for name, leaf in _named(tree):
        if _is_key(leaf):
            raise ConfigError(
                f"{method} was given a typed random key of JAX{' in ' * bool(name)}{name}; give "
                "jax.random.key_data(key), of which jax.random.wrap_key_data makes a key again"
            )
    return tree


def on_device(leaf: Any, method: str) -> Array:
    """The array. Raises `ConfigError` for anything that is not on a device."""
    if not isinstance(leaf, Array):
        raise ConfigError(f"{method} takes arrays on devices, not {a_type(leaf)}; it is on the host already")
    return leaf


def layout(tree: Tree) -> int:
    """What devices compare of arrays that are sent as one: names, shapes and types, in their order."""
    return layout_code([(name, jnp.shape(leaf), jnp.result_type(leaf)) for name, leaf in _named(tree)])


def kinds(tree: Tree) -> dict[str, list[str]]:
    """Type and shape of each leaf by name, for `mismatch_error`."""
    return {
        name or "the tree": [agreement.dtype_and_shape(str(jnp.result_type(leaf)), np.shape(leaf)), ""]
        for name, leaf in _named(tree)
    }


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _named(tree: Tree) -> list[tuple[str, Any]]:
    leaves = cast("list[tuple[Any, Any]]", jax.tree_util.tree_leaves_with_path(tree))
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves]
