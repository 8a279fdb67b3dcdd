"""Off-policy estimators, as functions of how often each group of trajectories was drawn.

They are computed for B samples at once: counts of one give the estimate itself, draws with replacement its bootstrap.

Shapes: B samples, G groups, C columns (the reward, then each metric), J numbers of steps.
"""

from collections.abc import Sequence

import numpy as np

from lockstep.estimators.trajectories import Floats, Sums

DECISION = ("decision_direct", "decision_ips", "decision_snips", "decision_clipped_ips", "decision_dr")
"""Estimates of one decision: the mean reward of a row if the policy chose the actions in the logged states."""
TRAJECTORY = (
    "fitted_q",
    "ips",
    "snips",
    "clipped_ips",
    "per_decision_ips",
    "per_decision_snips",
    "sequential_dr",
    "weighted_sequential_dr",
    "magic",
)
"""Estimates of a trajectory: the mean discounted return of the policy from the first state."""
TRUSTS_MODEL = {
    "decision_direct": "decision_dr",
    "fitted_q": "weighted_sequential_dr",
    "magic": "weighted_sequential_dr",
}
"""Estimators that rely on a model, and for each of them the one that corrects the model with the log."""

_MAX_ELEMENTS = 8_000_000  # of one array


def logged(sums: Sums, draws: Floats) -> dict[str, Floats]:
    """The logged policy's mean reward of a row, and its mean discounted return; each [B, C]."""
    return {
        "decision_logged": _mean(draws, sums.reward, sums.rows),
        "logged": _mean(draws, sums.returns, sums.trajectories),
    }


def decision_estimates(sums: Sums, draws: Floats) -> dict[str, Floats]:
    """Estimates of one decision [B, C], by name. rho = pi(a|s) / propensity; E is the mean over rows.

    direct: E[sum_a pi(a|s) R(s, a)];  ips: E[rho r] (Horvitz and Thompson, 1952);  snips: E[rho r] / E[rho]
    (Swaminathan and Joachims, 2015);  clipped_ips: E[min(rho, c) r] (Ionides, 2008);
    dr: E[sum_a pi(a|s) R(s, a) + rho (r - R(s, a))] (Dudik et al., 2011, arXiv:1103.4601).
    """
    found: dict[str, Floats] = {}
    if sums.has_predictions:
        found["decision_direct"] = _mean(draws, sums.direct, sums.rows)
    if sums.has_ratio:
        found["decision_ips"] = _mean(draws, sums.ratio_reward, sums.rows)
        found["decision_snips"] = _mean(draws, sums.ratio_reward, sums.ratio)
        found["decision_clipped_ips"] = _mean(draws, sums.clipped_reward, sums.rows)
    if sums.has_ratio and sums.has_predictions:
        found["decision_dr"] = _mean(draws, sums.direct + sums.correction, sums.rows)
    return found


def trajectory_estimates(sums: Sums, draws: Floats) -> dict[str, Floats]:
    """Estimates of a trajectory [B, C], by name, but those of `j_step_returns`. E is the mean over trajectories.

    w, w_t and G are as in `Sums`.

    fitted_q: E[V(s_0)];  ips: E[w G], and snips over E[w] (Precup et al., 2000);  clipped_ips: E[min(w, c) G];
    per_decision_ips: E[sum_t gamma^t w_t r_t];
    sequential_dr: E[V(s_0) + sum_t gamma^t w_t (r_t + gamma V(s_(t+1)) - Q(s_t, a_t))] (Jiang and Li, 2016,
    arXiv:1511.03722).
    """
    found: dict[str, Floats] = {}
    if sums.has_predictions:
        found["fitted_q"] = _mean(draws, sums.value, sums.trajectories)
    if not sums.has_ratio:
        return found
    found["ips"] = _mean(draws, sums.weighted_returns, sums.trajectories)
    found["snips"] = _mean(draws, sums.weighted_returns, sums.weight)
    found["clipped_ips"] = _mean(draws, sums.clipped_returns, sums.trajectories)
    starts = np.cumsum(sums.steps) - sums.steps
    found["per_decision_ips"] = _mean(draws, np.add.reduceat(sums.step_reward, starts), sums.trajectories)
    if sums.has_predictions:
        terms = np.add.reduceat(sums.step_reward - sums.step_q + sums.step_value, starts)
        found["sequential_dr"] = _mean(draws, terms, sums.trajectories)
    return found


def j_step_returns(sums: Sums, draws: Floats, steps: Sequence[int]) -> tuple[Floats, Floats]:
    """Self-normalized sums over steps: `per_decision_snips` [B, C], and j-step returns g(j) [B, J, C].

    per_decision_snips: sum_t A_t with A_t = E[gamma^t w_t r_t] / E[w_t].
    g(j) = sum_(t<=j) (A_t - B_t + C_t) + C_(j+1), where B_t is A_t with Q(s_t, a_t) in place of r_t, and
    C_t = E[gamma^t w_(t-1) V(s_t)] / E[w_(t-1)]: logged rewards for j + 1 steps, then the model's value.
    g(-1) is the model alone. The last g is weighted_sequential_dr (Thomas and Brunskill, 2016, arXiv:1604.00923, eq. 10
    and 11). Steps without any remaining weight add 0. `steps` has the values of j, ascending from -1.
    """
    columns, number = sums.reward.shape[1], len(draws)
    longest = int(sums.steps.max())
    starts = np.cumsum(sums.steps) - sums.steps
    before = draws @ sums.trajectories
    total = np.zeros((number, columns))
    rewards = np.zeros((number, columns))
    position = {j: i for i, j in enumerate(steps)}
    returns = np.zeros((number, len(steps), columns))
    width = max(1, _MAX_ELEMENTS // (max(draws.shape) * (1 + 3 * columns)))
    for begin in range(0, longest + 1, width):
        span = np.arange(begin, min(begin + width, longest + 1))
        drawn = (draws @ _dense(sums, starts, span).reshape(len(sums.steps), -1)).reshape(number, len(span), -1)
        weight = drawn[:, :, 0]
        earlier = np.concatenate([before[:, None], weight[:, :-1]], 1)
        reward, q, value = np.split(drawn[:, :, 1:], 3, axis=2)
        reward, q, value = _divide(reward, weight), _divide(q, weight), _divide(value, earlier)
        for i, t in enumerate(span.tolist()):
            if t - 1 in position:
                returns[:, position[t - 1]] = total + value[:, i]
            total = total + reward[:, i] - q[:, i] + value[:, i]
            rewards = rewards + reward[:, i]
        before = weight[:, -1]
    return rewards, returns


def _dense(sums: Sums, starts: np.ndarray, span: np.ndarray) -> Floats:
    """Weight, reward, Q and V of each group at the steps of `span` [G, len(span), 1 + 3 C]."""
    alive = span[None, :] < sums.steps[:, None]
    index = np.where(alive, starts[:, None] + span[None, :], 0)
    weight = np.where(alive, sums.step_weight[index], sums.weight[:, None])
    parts = [np.where(alive[:, :, None], x[index], 0.0) for x in (sums.step_reward, sums.step_q, sums.step_value)]
    return np.concatenate([weight[:, :, None], *parts], 2)


def _mean(draws: Floats, total: Floats, number: Floats) -> Floats:
    """Divide total by number, both over the draws [B, C]; NaN where the denominator is 0."""
    weight = draws @ number
    return np.divide(
        draws @ total, weight[:, None], out=np.full((len(draws), total.shape[1]), np.nan), where=weight[:, None] > 0
    )


def _divide(total: Floats, weight: Floats) -> Floats:
    """Divide total by weight; 0 where the weight is 0."""
    return np.divide(total, weight[:, :, None], out=np.zeros_like(total), where=weight[:, :, None] > 0)
