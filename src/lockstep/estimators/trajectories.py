"""The inputs of the estimators: rows of whole trajectories, and sums over groups of trajectories.

Shapes: n rows, K trajectories, G groups of them, C columns (the reward, then each metric), L steps of all groups.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MAX_LOG_WEIGHT = 345.0
"""Weights are clipped to exp(345) = 1e150, so that their squares are finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Predictions of the learned models for rows, each [n, C]."""

    reward: Floats
    """R(s, a) of the logged action."""
    policy_reward: Floats
    """sum_a pi(a|s) R(s, a)."""
    q: Floats
    """Q(s, a) of the logged action: the return if the policy acts from the next row on, discounted from this row."""
    value: Floats
    """V(s) = sum_a pi(a|s) Q(s, a)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """Rows of whole trajectories, in order."""

    offsets: Ints
    """[K + 1]: trajectory i consists of rows offsets[i] to offsets[i + 1]."""
    reward: Floats
    """[n, C]."""
    discount: Floats
    """[n], the discount of the row's reward, relative to the first row of its trajectory."""
    ratio: Floats | None = None
    """[n], pi(a|s) / propensity of the logged action; None if the log has no propensities."""
    predicted: Predicted | None = None
    cut: NDArray[np.bool_] | None = None
    """[K], whether the log ends before the trajectory does; None: for no trajectory."""
    unlogged: Floats | None = None
    """[n], the policy's probability of actions that do not occur in the log; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Sums over groups of trajectories, from which all estimates are computed. Unknown sums are 0.

    rho is the ratio of a row, w_t the product of a trajectory's ratios up to and including row t, w the product of all
    of them, and G = sum_t discount_t r_t. Clipped sums use min(rho, c) or min(w, c).
    """

    trajectories: Floats
    """[G], the number of trajectories."""
    rows: Floats
    cut: Floats
    """[G], the number of trajectories that the log does not contain to their end."""
    unlogged: Floats
    reward: Floats
    """[G, C]."""
    reward_range: Floats
    """[G, C, 2], the smallest and the largest r."""
    ratio: Floats
    ratio_squared: Floats
    ratio_reward: Floats
    clipped_ratio: Floats
    clipped_reward: Floats
    direct: Floats
    """[G, C], sum_a pi(a|s) R(s, a)."""
    correction: Floats
    """[G, C], rho (r - R(s, a))."""
    returns: Floats
    """[G, C], G."""
    returns_range: Floats
    """[G, C, 2], the smallest and the largest G."""
    weight: Floats
    weight_squared: Floats
    weighted_returns: Floats
    """[G, C], w G."""
    clipped_weight: Floats
    clipped_returns: Floats
    value: Floats
    """[G, C], V of the first state."""
    steps: Ints
    """[G], rows of the group's longest trajectory."""
    step_weight: Floats
    """[L], w_t by group and step; a trajectory that has ended keeps its last weight, as in an absorbing state."""
    step_reward: Floats
    """[L, C], discount_t w_t r_t."""
    step_q: Floats
    """[L, C], discount_t w_t Q(s_t, a_t)."""
    step_value: Floats
    """[L, C], discount_t w_(t-1) V(s_t), with w_(-1) = 1."""
    has_ratio: bool
    has_predictions: bool

    @classmethod
    def joined(cls, parts: Sequence["Sums"]) -> "Sums":
        """Concatenate the groups of all parts."""
        named: dict[str, Any] = {}
        for item in fields(cls):
            values = [getattr(part, item.name) for part in parts]
            named[item.name] = all(values) if item.type in ("bool", bool) else np.concatenate(values)
        return cls(**named)

    def to_dict(self) -> dict[str, Any]:
        """Arrays and flags by name, for `Sums(**data)`."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


def discounts(offsets: Ints, gamma: float, elapsed: Floats | None = None) -> Floats:
    """The discount of each row relative to its trajectory's first: gamma to the number of rows, or the time, between.

    `elapsed` [n] are the units of time from each row to the next of its trajectory.
    """
    steps = np.ones(int(offsets[-1])) if elapsed is None else np.asarray(elapsed, np.float64)
    before = np.cumsum(steps) - steps
    return gamma ** (before - _first(before, offsets))


def summed(rows: Decisions, groups: Sequence[int], clip: tuple[float, float]) -> Sums:
    """Sum over consecutive groups of trajectories, given the number of trajectories of each.

    `clip`: the clipping thresholds of the ratio of a row and of the weight of a trajectory.
    """
    offsets, ends = rows.offsets, np.cumsum(np.asarray(groups, np.int64))
    assert ends[-1] == len(offsets) - 1, f"the groups have {ends[-1]} trajectories, not {len(offsets) - 1}"
    starts = np.concatenate([[0], ends[:-1]])
    row_starts = offsets[starts]
    known, n = rows.ratio is not None, len(rows.reward)
    ratio = rows.ratio if rows.ratio is not None else np.zeros(n)
    weight = weights(ratio, offsets)
    zeros = np.zeros_like(rows.reward)
    predicted = rows.predicted or Predicted(reward=zeros, policy_reward=zeros, q=zeros, value=zeros)
    discounted = rows.discount[:, None] * rows.reward
    returns, last = np.add.reduceat(discounted, offsets[:-1]), weight[offsets[1:] - 1]
    cut = np.zeros(len(returns)) if rows.cut is None else rows.cut.astype(np.float64)

    def over_rows(x: Floats) -> Floats:
        return np.add.reduceat(x, row_starts)

    def over_trajectories(x: Floats) -> Floats:
        return np.add.reduceat(x, starts)

    def range_of(x: Floats, first: Ints) -> Floats:
        return np.stack([np.minimum.reduceat(x, first), np.maximum.reduceat(x, first)], -1)

    clipped, clipped_last = np.minimum(ratio, clip[0]), np.minimum(last, clip[1])
    return Sums(
        trajectories=np.asarray(groups, np.float64),
        rows=over_rows(np.ones(n)),
        cut=over_trajectories(cut),
        unlogged=over_rows(np.zeros(n) if rows.unlogged is None else rows.unlogged),
        reward=over_rows(rows.reward),
        reward_range=range_of(rows.reward, row_starts),
        ratio=over_rows(ratio),
        ratio_squared=over_rows(ratio**2),
        ratio_reward=over_rows(ratio[:, None] * rows.reward),
        clipped_ratio=over_rows(clipped),
        clipped_reward=over_rows(clipped[:, None] * rows.reward),
        direct=over_rows(predicted.policy_reward),
        correction=over_rows(ratio[:, None] * (rows.reward - predicted.reward)),
        returns=over_trajectories(returns),
        returns_range=range_of(returns, starts),
        weight=over_trajectories(last),
        weight_squared=over_trajectories(last**2),
        weighted_returns=over_trajectories(last[:, None] * returns),
        clipped_weight=over_trajectories(clipped_last),
        clipped_returns=over_trajectories(clipped_last[:, None] * returns),
        value=over_trajectories(predicted.value[offsets[:-1]]),
        has_ratio=known,
        has_predictions=rows.predicted is not None,
        **_by_step(rows, starts, weight, discounted, predicted),
    )


def weights(ratio: Floats, offsets: Ints) -> Floats:
    """w_t [n]: the product of the ratios of a trajectory up to and including each row."""
    logs, zero = np.zeros_like(ratio), ratio == 0.0
    np.log(ratio, out=logs, where=~zero)
    total, zeros = np.cumsum(logs), np.cumsum(zero)
    before = _first(total - logs, offsets)
    found: Floats = np.exp(np.minimum(total - before, _MAX_LOG_WEIGHT))
    found[zeros > _first(zeros - zero, offsets)] = 0.0
    return found


def scale_of(x: Floats) -> float:
    """The power of two next above the largest |x|; 1 where all are 0.

    Huge weights are divided by it before they are squared: the squares stay finite, and nothing is rounded.
    """
    largest = float(np.abs(x).max(initial=0.0))
    return math.ldexp(1.0, min(math.frexp(largest)[1], 1023)) if largest else 1.0


def _by_step(rows: Decisions, starts: Ints, weight: Floats, discounted: Floats, predicted: Predicted) -> dict[str, Any]:
    offsets = rows.offsets
    lengths = np.diff(offsets)
    longest = np.maximum.reduceat(lengths, starts)
    first = np.cumsum(longest) - longest  # index of each group's first step
    group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(lengths))))  # [K]
    step = np.arange(len(weight)) - np.repeat(offsets[:-1], lengths)
    index, size = np.repeat(first[group], lengths) + step, int(longest.sum())

    def by_step(x: Floats) -> Floats:
        return cast(Floats, np.stack([np.bincount(index, column, size) for column in x.T], 1))

    before = np.roll(weight, 1)
    before[offsets[:-1]] = 1.0
    # An ended trajectory adds its last weight at the step after its last row. The cumulative sum within the group
    # repeats it for all later steps.
    ended = lengths < longest[group]
    added = np.bincount((first[group] + lengths)[ended], weight[offsets[1:] - 1][ended], size)
    kept = np.concatenate([np.cumsum(part) for part in np.split(added, first[1:])])
    return {
        "steps": longest,
        "step_weight": np.bincount(index, weight, size) + kept,
        "step_reward": by_step(weight[:, None] * discounted),
        "step_q": by_step((rows.discount * weight)[:, None] * predicted.q),
        "step_value": by_step((rows.discount * before)[:, None] * predicted.value),
    }


def _first(x: Floats | Ints, offsets: Ints) -> NDArray[Any]:
    """The value of `x` in the first row of each row's trajectory [n]."""
    return cast("NDArray[Any]", np.repeat(x[offsets[:-1]], np.diff(offsets)))
