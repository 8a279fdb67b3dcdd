"""Random orders of rows, within compiled code."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.data.permutation import ROUNDS

_MOST_SORTED = 1024
"""Rows of an order that is made by sorting. Of more, too many would have equal keys."""


def permutations(key: Array, count: int, size: int) -> Array:
    """`count` random orders [count, size] int32 of `range(size)`."""
    if size > _MOST_SORTED:
        keys = jax.random.bits(key, (count, ROUNDS, 3))
        return jax.vmap(partial(_permuted, size=size))(keys)
    # On CPUs a plain sort is ten times faster than an argsort, so the index is stored in the low bits of each key. Ties
    # of the high bits favour low indices; with 22 high bits or more they are rare.
    low = max(size - 1, 1).bit_length()
    indices = jnp.broadcast_to(jnp.arange(size, dtype=jnp.uint32), (count, size))
    keys = jnp.sort((jax.random.bits(key, (count, size)) >> low << low) | indices, -1)
    return (keys & ((1 << low) - 1)).astype(jnp.int32)


def _permuted(keys: Array, size: int) -> Array:
    """The order that the `keys` [ROUNDS, 3] uint32 give: `lockstep.data.permutation.Permutation` in 32 bits.

    On a CPU it takes a fifth of the time of a sort, or less. Multiplying by an odd number is invertible.
    """
    width = np.uint32(math.isqrt(size - 1) + 1)
    height = np.uint32(-(-size // int(width)))

    def shuffle(cell: Array) -> Array:
        down = cell // width
        across = cell - down * width
        for number in range(ROUNDS):
            by, side = (across, height) if number % 2 else (down, width)
            hashed = by * (keys[number, 0] | 1) + keys[number, 1]
            hashed = (hashed ^ (hashed >> 15)) * (keys[number, 2] | 1)
            moved = (down if number % 2 else across) + ((hashed >> 16) * side >> 16)
            moved = jnp.where(moved >= side, moved - side, moved)
            down, across = (moved, across) if number % 2 else (down, moved)
        return down * width + across

    rows = jax.lax.while_loop(
        lambda rows: (rows >= size).any(),
        lambda rows: jnp.where(rows >= size, shuffle(rows), rows),
        shuffle(jnp.arange(size, dtype=jnp.uint32)),
    )
    return rows.astype(jnp.int32)
