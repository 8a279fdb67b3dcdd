"""Lists of candidates, one for each row and each as long as it is, laid one behind the other: nothing is padded.

Every result has the same bits each time, on a CPU and on a GPU: no sum is left to the order in which threads add.

Shapes: N rows, m candidates of all rows together, K features of a candidate. A row may have none.
"""

from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor

from lockstep.algorithms.offline import LoggedConfig
from lockstep.data.columns import Ragged


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates of N rows."""

    values: Tensor
    """Features [m, K]."""
    offsets: Tensor
    """Where each row's list begins and where the last one ends [N + 1]."""
    row: Tensor
    """Which row each candidate belongs to [m]."""

    @classmethod
    def of(cls, lists: Ragged, device: torch.device) -> Self:
        """On the device, what lies on the host."""
        row = np.repeat(np.arange(len(lists.offsets) - 1), np.diff(lists.offsets))
        return cls(*(torch.from_numpy(array).to(device) for array in (lists.values, lists.offsets, row)))

    @property
    def lengths(self) -> Tensor:
        """How many candidates each row has [N]."""
        return self.offsets.diff()

    def of_row(self, i: int) -> "Candidates":
        """Those of row `i` alone."""
        begin, end = cast("list[int]", self.offsets[i : i + 2].tolist())
        return Candidates(
            self.values[begin:end], self.offsets[i : i + 2] - begin, torch.zeros_like(self.row[begin:end])
        )


class _Spread(torch.autograd.Function):
    """y_j = x_row(j); dL/dx_i is the sum of dL/dy_j over the candidates j of row i, in their order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, row: Tensor, offsets: Tensor) -> Tensor:
        ctx.save_for_backward(row, offsets)
        return x.index_select(0, row)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        row, offsets = ctx.saved_tensors
        gradient = gradients[0]
        if gradient.device.type == "cpu":  # several times as fast there, and one row after the other; not so on a GPU
            added = gradient.new_zeros(len(offsets) - 1, *gradient.shape[1:])
            return added.index_add_(0, row, gradient), None, None
        return _segments(gradient.contiguous(), offsets, "sum"), None, None


def spread(x: Tensor, lists: Candidates) -> Tensor:
    """What belongs to rows, [N, ...], for each of their candidates, [m, ...]."""
    return cast(Tensor, _Spread.apply(x, lists.row, lists.offsets))


def total(x: Tensor, lists: Candidates) -> Tensor:
    """The sum of x [m, ...] over the candidates of each row [N, ...]; 0 of none."""
    return _segments(x, lists.offsets, "sum")


def largest(x: Tensor, lists: Candidates) -> Tensor:
    """max_j x_j over the candidates of each row [N], and 0 of none; carries no gradient."""
    found = _segments(x.detach(), lists.offsets, "max")
    return torch.where(lists.lengths > 0, found, 0.0)


def first_largest(x: Tensor, lists: Candidates) -> Tensor:
    """argmax_j x_j: which of all m candidates is the first largest of each row [N]; m where a row has none."""
    # Not "equal to the largest": where there is a NaN nothing would be.
    best = ~(x.detach() < largest(x, lists).index_select(0, lists.row))
    place = torch.arange(len(x), device=x.device)
    place = torch.where(best, place, len(x))
    return place.new_full((len(lists.offsets) - 1,), len(x)).scatter_reduce(0, lists.row, place, "amin")


def pick(x: Tensor, index: Tensor) -> Tensor:
    """What x [m, ...] is at `index` [N], as `first_largest` has it: 0 where that is m."""
    return torch.cat([x, x.new_zeros(1, *x.shape[1:])]).index_select(0, index)


def log_sum_exp(x: Tensor, lists: Candidates) -> Tensor:
    """LSE_i = log sum_j exp x_j over the candidates of each row [N]; of none 0, so that a weight of 0 leaves it out."""
    top = largest(x, lists)
    added = total((x - top.index_select(0, lists.row)).exp(), lists)
    return torch.where(lists.lengths > 0, added, 1.0).log() + top


def log_softmax(x: Tensor, lists: Candidates) -> Tensor:
    """x_j - log sum_i exp x_i, i over the candidates of the same row [m]."""
    return x - spread(log_sum_exp(x, lists), lists)


def expected(value: Tensor, scores: Tensor, lists: Candidates, config: LoggedConfig) -> Tensor:
    """sum_j pi(a_j | s) value_j over the candidates of each row [N, ...], 0 of none.

    Args:
        value: of each candidate [m, ...].
        scores: by which the policy pi chooses [m].
        lists: the candidates.
        config: `policy`: the first of the highest score, or softmax(scores / `temperature`).
    """
    if config.policy == "greedy":
        return pick(value, first_largest(scores, lists))
    probability = log_softmax(scores / config.temperature, lists).exp()
    return total(probability.view(-1, *[1] * (value.ndim - 1)) * value, lists)


def taken(lists: Candidates, action_index: Tensor) -> Tensor:
    """Where among all m candidates that with number `action_index` [N] of each row lies [N]; each row must have it."""
    return lists.offsets[:-1] + action_index


def _segments(x: Tensor, offsets: Tensor, how: str) -> Tensor:
    return torch.segment_reduce(x, how, offsets=offsets, axis=0, unsafe=True)
