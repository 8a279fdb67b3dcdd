"""Adam on one flat vector, by optax."""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax  # pyright: ignore[reportMissingTypeStubs]
from jax import Array

from lockstep.distributed.tree import tree_sum

_WAYS = 16


class AdamState(NamedTuple):
    """What must survive a restart and be equal on all ranks."""

    moment: Array
    """m [P]."""
    square: Array
    """v [P]."""
    steps: Array
    """t, int32."""


class Adam:
    """Adaptive moments (Kingma and Ba, 2015, arXiv:1412.6980); pure functions.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  x -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    Args:
        eps: eps.
        betas: b1 and b2.
    """

    def __init__(self, eps: float, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self._adam = optax.scale_by_adam(b1=betas[0], b2=betas[1], eps=eps)

    def init(self, values: Array) -> AdamState:
        """Before the first step."""
        return AdamState(jnp.zeros_like(values), jnp.zeros_like(values), jnp.zeros((), jnp.int32))

    def step(
        self, state: AdamState, values: Array, gradient: Array, learning_rate: Array, skipped: Array
    ) -> tuple[Array, AdamState]:
        """Change the values [P] once.

        Args:
            state: m, v and t.
            values: x.
            gradient: g.
            learning_rate: lr, an array of no dimensions: a number would be compiled in.
            skipped: a bool of no dimensions. Where it is true nothing changes, whatever the gradient holds: neither
                values nor moments, nor the count of steps.
        """
        before = optax.ScaleByAdamState(state.steps, state.moment, state.square)
        change, after = cast(Any, self._adam).update(gradient, before)
        old, new = (values, *state), (values - learning_rate * change, after.mu, after.nu, after.count)
        values, moment, square, steps = (jnp.where(skipped, was, now) for was, now in zip(old, new, strict=True))
        return values, AdamState(moment, square, steps)


def adapted(learning_rate: Array, kl: Array, desired_kl: float) -> Array:
    """The rate a third lower when the policy moved too far, a half higher when it hardly moved."""
    factor = jnp.where(kl > 2.0 * desired_kl, 1 / 1.5, jnp.where(kl < 0.5 * desired_kl, 1.5, 1.0))
    return jnp.clip(learning_rate * factor, 1e-6, 1e-2)


def norm_of(gradient: Array) -> Array:
    """The Euclidean norm, with the same bits in every program.

    XLA sums a long vector in parts, as many as there are threads, and a process of several devices has more of them.
    Here a level adds sixteen numbers element by element, which nobody reorders.
    """
    rows = jax.lax.optimization_barrier(jnp.square(gradient))
    while rows.size > 1:
        width = -(-rows.size // _WAYS)
        parts = jnp.pad(rows, (0, _WAYS * width - rows.size)).reshape(_WAYS, width)
        rows = jax.lax.optimization_barrier(tree_sum({(i, i + 1): parts[i] for i in range(_WAYS)}, (0, _WAYS), jnp.add))
    return jnp.sqrt(rows.reshape(()))
