"""Returns and advantages. Shapes: T steps, B environments."""

from torch import Tensor


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    ended: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
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
    advantage = reward + gamma * next_value * (1.0 - terminated) - value
    factor = gamma * gae_lambda * (1.0 - ended)
    # The recursion in log2(T) rounds instead of T: after the round with `step`, A_t sums `2 step` deltas.
    step = 1
    while step < len(reward):
        advantage[:-step] += factor[:-step] * advantage[step:]
        factor[:-step] *= factor[step:].clone()
        step *= 2
    return advantage
