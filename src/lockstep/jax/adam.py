"""Adam on one flat vector, by optax."""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax  # pyright: ignore[reportMissingTypeStubs]
from jax import Array

from lockstep.algorithms.ppo import ADAPTIVE_RATES
from lockstep.distributed.tree import tree_sum

_FANOUT = 16


class AdamState(NamedTuple):
    """The optimizer state, equal on all ranks."""

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

    def __init__(self, eps: float = 1e-8, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self._adam = optax.scale_by_adam(b1=betas[0], b2=betas[1], eps=eps)

    def init(self, params: Array) -> AdamState:
        """The state before the first step."""
        return AdamState(jnp.zeros_like(params), jnp.zeros_like(params), jnp.zeros((), jnp.int32))

    def step(
        self, state: AdamState, params: Array, gradient: Array, learning_rate: Array, skipped: Array
    ) -> tuple[Array, AdamState]:
        """Update the parameters [P].

        Args:
            state: m, v and t.
            params: x.
            gradient: g.
            learning_rate: lr, a scalar array; a Python number would be a compile-time constant.
            skipped: a scalar bool. If it is true, parameters, moments and step count are unchanged, even by a NaN
                gradient.
        """
        before = optax.ScaleByAdamState(state.steps, state.moment, state.square)
        change, after = cast(Any, self._adam).update(gradient, before)
        old, new = (params, *state), (params - learning_rate * change, after.mu, after.nu, after.count)
        params, moment, square, steps = (jnp.where(skipped, was, now) for was, now in zip(old, new, strict=True))
        return params, AdamState(moment, square, steps)


def adapted(learning_rate: Array, kl: Array, desired_kl: float) -> Array:
    """The learning rate divided by 1.5 if KL > 2 `desired_kl`, multiplied by 1.5 if KL < `desired_kl` / 2.

    The result lies in `ADAPTIVE_RATES`, also where the KL changes nothing.
    """
    factor = jnp.where(kl > 2.0 * desired_kl, 1 / 1.5, jnp.where(kl < 0.5 * desired_kl, 1.5, 1.0))
    return jnp.clip(learning_rate * factor, *ADAPTIVE_RATES)


def global_norm(gradient: Array) -> Array:
    """The Euclidean norm, with the same bits in every program.

    XLA splits a long sum by the number of threads, which depends on the devices of the process. Here each level adds
    sixteen rows elementwise in a fixed order.
    """
    rows = jax.lax.optimization_barrier(jnp.square(gradient))
    while rows.size > 1:
        width = -(-rows.size // _FANOUT)
        parts = jnp.pad(rows, (0, _FANOUT * width - rows.size)).reshape(_FANOUT, width)
        rows = jax.lax.optimization_barrier(
            tree_sum({(i, i + 1): parts[i] for i in range(_FANOUT)}, (0, _FANOUT), jnp.add)
        )
    return jnp.sqrt(rows.reshape(()))


def clip_by_global_norm(gradient: Array, max_norm: float | None) -> tuple[Array, Array]:
    """The gradient, clipped to `max_norm` if that is not None, and its 2-norm before; an empty gradient has norm 0."""
    norm = global_norm(gradient) if gradient.size else jnp.zeros((), jnp.float32)
    if max_norm is not None:
        gradient = gradient * jnp.minimum(max_norm / (norm + 1e-6), 1.0)
    return gradient, norm
