"""Returns and advantages. Shapes: T steps, B environments."""

import jax
from jax import Array


def gae(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    ended: Array,
    *,
    gamma: float,
    gae_lambda: float,
) -> Array:
    """Generalized advantage estimation (Schulman et al., 2016, arXiv:1506.02438, eq. 16), all arguments [T, B].

    delta_t = r_t + gamma (1 - terminated_t) V(s_{t+1}) - V(s_t)
    A_t     = delta_t + gamma lambda (1 - ended_t) A_{t+1},  A_T = 0

    Termination cuts the bootstrap; the end of an episode, terminated or truncated, cuts the trace.

    Args:
        reward: r_t.
        value: V(s_t).
        next_value: V of the *true* next observation, before any reset.
        terminated: 1 where the task ended the episode at t.
        ended: 1 where the episode ended at t, terminated or truncated.
        gamma: discount per step.
        gae_lambda: weight of longer returns.
    """
    delta = reward + gamma * next_value * (1.0 - terminated) - value
    factor = gamma * gae_lambda * (1.0 - ended)

    # A_t is an affine function of A_{t+1}, and composition is associative: a scan takes log2(T) rounds.
    def compose(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
        return earlier[0] * later[0], earlier[1] + earlier[0] * later[1]

    _, advantage = jax.lax.associative_scan(compose, (factor, delta), reverse=True)
    return advantage
