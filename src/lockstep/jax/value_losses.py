"""Targets and losses of Q-learning; every function is per row, without a mean.

Shapes: N rows, A actions, Z points of a return's distribution (atoms of C51, quantiles of QR-DQN). A reward here is the
sum gamma^k r_k of the n rewards before the target bootstraps, a discount gamma^n, or 0 where the episode terminated
within them. Targets must carry no gradient: compute them from parameters that are not differentiated.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax


def gather_actions(outputs: Array, action: Array) -> Array:
    """The outputs [N, A] or [N, A, Z] for one action of each row [N]: [N] or [N, Z]."""
    taken = jnp.arange(outputs.shape[1], dtype=jnp.int32)[None] == action.astype(jnp.int32)[:, None]
    # A masked sum instead of indexing, whose gradient is a scatter that CPUs run row by row.
    taken = taken.reshape(*taken.shape, *[1] * (outputs.ndim - 2))
    return jnp.where(jnp.broadcast_to(taken, outputs.shape), outputs, jnp.zeros_like(outputs)).sum(1)


def td_target(reward: Array, discount: Array, next_q: Array) -> Array:
    """The temporal-difference target y = r + discount Q'(s', a'), all [N].

    Q-learning takes a' = argmax Q' (Mnih et al., 2015), double Q-learning a' = argmax Q of the online network (van
    Hasselt et al., 2016, arXiv:1509.06461). Quantiles [N, Z] of the next return become those of r + discount Z' (Dabney
    et al., 2018, arXiv:1710.10044, algorithm 1).
    """
    if next_q.ndim > 1:
        reward, discount = reward[:, None], discount[:, None]
    return reward + discount * next_q


def squared(error: Array) -> Array:
    """L = e^2 / 2."""
    return 0.5 * jnp.square(error)


def expectile(error: Array, tau: float) -> Array:
    """L = |tau - 1{e < 0}| e^2, whose minimum over targets is their tau-expectile (Newey and Powell, 1987)."""
    return jnp.where(error < 0, 1.0 - tau, tau) * jnp.square(error)


def huber(error: Array, kappa: float = 1.0) -> Array:
    """L = e^2 / 2 within kappa, kappa (|e| - kappa / 2) beyond (Huber, 1964): its slope never exceeds kappa."""
    size = jnp.abs(error)
    near = jnp.minimum(size, kappa)
    return near * (size - 0.5 * near)


def quantile_huber(quantiles: Array, targets: Array, kappa: float = 1.0) -> Array:
    """The loss of QR-DQN (Dabney et al., 2018, arXiv:1710.10044, eq. 10), [N].

    u_ij = targets_j - quantiles_i,  tau_i = (i + 1/2) / Z
    L    = sum_i mean_j |tau_i - 1{u_ij < 0}| huber(u_ij) / kappa

    Args:
        quantiles: theta of the chosen action [N, Z], which are learned.
        targets: quantiles of the target [N, Z'].
        kappa: where the Huber loss becomes linear.
    """
    count = quantiles.shape[-1]
    tau = (jnp.arange(count, dtype=quantiles.dtype) + 0.5) / count
    error = targets[:, None, :] - quantiles[:, :, None]
    below = lax.stop_gradient(error < 0).astype(tau.dtype)
    weight = jnp.abs(tau[None, :, None] - below)
    return (weight * huber(error, kappa)).mean(-1).sum(-1) / kappa


def categorical_projection(probability: Array, reward: Array, discount: Array, support: Array) -> Array:
    """The distribution of r + discount Z on the atoms of Z (C51; Bellemare et al., 2017, arXiv:1707.06887, eq. 7).

    m_j = sum_i max(0, 1 - |clip(r + discount z_i, z_1, z_Z) - z_j| / (z_2 - z_1)) p_i

    Args:
        probability: p of each atom at the next state, for the action taken there [N, Z].
        reward: r [N].
        discount: 0 puts all mass where r is [N].
        support: atoms z, rising in equal steps [Z].

    Returns:
        m [N, Z]; each row sums to what that row of `probability` does.
    """
    last = support.shape[0] - 1
    moved = reward[:, None] + discount[:, None] * support[None]
    # Positions in units of atoms. The triangular kernel needs no special case at atoms and borders.
    place = jnp.clip((moved - support[0]) * (last / (support[-1] - support[0])), 0.0, last)
    atoms = jnp.arange(last + 1, dtype=place.dtype)
    near = jnp.maximum(1.0 - jnp.abs(place[:, None, :] - atoms[None, :, None]), 0.0)
    # Not a matrix product, whose precision and order of additions depend on the device.
    return (near * probability[:, None, :]).sum(-1)


def cross_entropy(logits: Array, target: Array) -> Array:
    """-sum_j target_j log softmax(logits)_j, of [N, Z] each: the loss of C51 (Bellemare et al., 2017), [N]."""
    return -(target * jax.nn.log_softmax(logits, -1)).sum(-1)
