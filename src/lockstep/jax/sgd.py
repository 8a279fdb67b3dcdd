"""Gradient descent on one flat vector; same interface as `lockstep.jax.adam.Adam`."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class SgdState(NamedTuple):
    """The optimizer state, equal on all ranks."""

    steps: Array
    """Steps taken, int32."""


class Sgd:
    """x -= lr g; pure functions."""

    def init(self, params: Array) -> SgdState:
        """The state before the first step."""
        del params
        return SgdState(jnp.zeros((), jnp.int32))

    def step(
        self, state: SgdState, params: Array, gradient: Array, learning_rate: Array, skipped: Array
    ) -> tuple[Array, SgdState]:
        """Update the parameters [P], unless `skipped` is true."""
        after = jnp.where(skipped, params, params - learning_rate * gradient)
        return after, SgdState(state.steps + jnp.where(skipped, 0, 1))
