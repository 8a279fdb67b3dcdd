"""The actions that each row of a batch may choose among: a mask over named actions, or lists of candidates.

`ActionMask` and `Candidates` have the same methods, so that losses and policies are written once for both kinds.

Shapes: N rows, A named actions, m candidates of all rows together, K features of a candidate. Values of actions are
[N, A, ...] for named actions and [m, ...] for candidates.
"""

from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor

from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.data.columns import Ragged
from lockstep.torch.transfer import to_device
from lockstep.torch.value_losses import gather_actions

ScoreConfig = OfflineDQNConfig | CloningConfig
"""Settings of a policy that chooses by scores: `policy` and `temperature`."""
_LOWEST = torch.finfo(torch.float32).min
"""The score of an impossible action in a softmax or an argmax. Finite, so that 0 times it is 0."""


@dataclass(frozen=True, slots=True)
class ActionMask:
    """The same A named actions in every row, some of which may be impossible."""

    possible: Tensor
    """0 or False where an action is impossible [N, A]."""

    def masked(self, scores: Tensor) -> Tensor:
        """Scores [N, A] as float32, with the lowest finite number for impossible actions."""
        return scores.float().masked_fill(self.possible == 0, _LOWEST)

    def pick(self, values: Tensor, action_index: Tensor) -> Tensor:
        """The values [N, A, ...] of one action of each row [N]; [N, ...]."""
        return gather_actions(values, action_index)

    def pick_best(self, values: Tensor, scores: Tensor) -> Tensor:
        """The values [N, A, ...] of the first possible action with the highest score [N, A]; [N, ...]."""
        return gather_actions(values, self.masked(scores).argmax(-1))

    def spread_evenly(self, weight: float, values: Tensor) -> Tensor:
        """sum_a (weight / number of possible actions) values_a of finite values [N, A]; [N]."""
        return weight * ((values * self.possible).sum(-1) / self.possible.sum(-1))

    def log_sum_exp(self, scores: Tensor) -> Tensor:
        """LSE = log sum_a exp scores_a over the possible actions [N]."""
        return self.masked(scores).logsumexp(-1)

    def log_softmax(self, scores: Tensor) -> Tensor:
        """scores_a - log sum_b exp scores_b, b over the possible actions [N, A]."""
        return self.masked(scores).log_softmax(-1)

    def probability(self, scores: Tensor, config: ScoreConfig) -> Tensor:
        """pi(a) of each action [N, A]: 1 for the best possible action, or softmax(scores / temperature).

        Args:
            scores: [N, A].
            config: `policy` and `temperature`.
        """
        if config.policy == "greedy":
            best = self.masked(scores).argmax(-1, keepdim=True)
            return torch.zeros_like(scores, dtype=torch.float32).scatter_(-1, best, 1.0)
        return self.masked(scores.float() / config.temperature).softmax(-1)

    def expected(self, values: Tensor, scores: Tensor, config: ScoreConfig) -> Tensor:
        """sum_a pi(a) values_a [N, C] of values [N, A, C], for the policy pi that `probability` returns."""
        return (self.probability(scores, config).unsqueeze(-1) * values).sum(1)

    def rows(self, first: int, count: int) -> "ActionMask":
        """`count` consecutive rows."""
        return ActionMask(self.possible[first : first + count])

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors to save under `name`."""
        return {name: self.possible}


@dataclass(frozen=True, slots=True)
class Candidates:
    """Lists of candidates, one for each of N rows, concatenated without padding. A list may be empty.

    Every result has the same bits each time, on a CPU and on a GPU: no sum depends on the order in which threads add.
    """

    values: Tensor
    """Features [m, K]."""
    offsets: Tensor
    """Start of each row's list, and the end of the last one [N + 1]."""
    owner: Tensor
    """The row of each candidate [m]."""

    @classmethod
    def of(cls, lists: Ragged, device: torch.device) -> Self:
        """Copy lists from the host to the device."""
        owner = np.repeat(np.arange(len(lists.offsets) - 1), np.diff(lists.offsets))
        return cls(*(to_device(array, device) for array in (lists.values, lists.offsets, owner)))

    @property
    def lengths(self) -> Tensor:
        """The number of candidates of each row [N]."""
        return self.offsets.diff()

    def repeat(self, rows: Tensor) -> Tensor:
        """Repeat rows [N, ...] for each of their candidates [m, ...]."""
        return cast(Tensor, _Repeat.apply(rows, self.owner, self.offsets))

    def sum(self, values: Tensor) -> Tensor:
        """The sum of values [m, ...] over the candidates of each row [N, ...]; 0 for an empty list."""
        return _segments(values, self.offsets, "sum")

    def max(self, values: Tensor) -> Tensor:
        """The maximum of values [m] over the candidates of each row [N]; 0 for an empty list. Carries no gradient."""
        found = _segments(values.detach(), self.offsets, "max")
        return torch.where(self.lengths > 0, found, 0.0)

    def argmax(self, scores: Tensor) -> Tensor:
        """The position among all m candidates of each row's first maximum [N]; m for an empty list."""
        # Not "equal to the maximum": a NaN equals nothing, and every list needs a position of its own.
        best = ~(scores.detach() < self.max(scores).index_select(0, self.owner))
        position = torch.arange(len(scores), device=scores.device)
        position = torch.where(best, position, len(scores))
        none = position.new_full((len(self.offsets) - 1,), len(scores))
        return none.scatter_reduce(0, self.owner, position, "amin")

    def pick(self, values: Tensor, action_index: Tensor) -> Tensor:
        """The values [m, ...] of candidate number `action_index` [N] of each row, which must have it; [N, ...]."""
        return _at(values, self.offsets[:-1] + action_index)

    def pick_best(self, values: Tensor, scores: Tensor) -> Tensor:
        """The values [m, ...] of each row's first candidate with the highest score [m]; 0 for an empty list."""
        return _at(values, self.argmax(scores))

    def spread_evenly(self, weight: float, values: Tensor) -> Tensor:
        """sum_j (weight / number of candidates) values_j of values [m]; [N], NaN for an empty list."""
        return weight * self.sum(values) / self.lengths

    def log_sum_exp(self, scores: Tensor) -> Tensor:
        """LSE = log sum_j exp scores_j over the candidates of each row [N].

        It is 0 for an empty list: a weight of 0 then removes the row, which it could not do with minus infinity.
        """
        top = self.max(scores)
        added = self.sum((scores - top.index_select(0, self.owner)).exp())
        return torch.where(self.lengths > 0, added, 1.0).log() + top

    def log_softmax(self, scores: Tensor) -> Tensor:
        """scores_j - log sum_i exp scores_i, i over the candidates of the same row [m]."""
        return scores - self.repeat(self.log_sum_exp(scores))

    def probability(self, scores: Tensor, config: ScoreConfig) -> Tensor:
        """pi(a) of each candidate [m]: 1 for the first best one of its row, or softmax(scores / temperature).

        Args:
            scores: [m].
            config: `policy` and `temperature`.
        """
        if config.policy == "greedy":
            return scores.new_zeros(len(scores) + 1).index_fill_(0, self.argmax(scores), 1.0)[:-1]
        return self.log_softmax(scores / config.temperature).exp()

    def expected(self, values: Tensor, scores: Tensor, config: ScoreConfig) -> Tensor:
        """sum_j pi(a_j) values_j [N, C] of values [m, C], 0 for an empty list; pi as `probability` returns it."""
        if config.policy == "greedy":
            return self.pick_best(values, scores)
        return self.sum(self.probability(scores, config).unsqueeze(-1) * values)

    def rows(self, first: int, count: int) -> "Candidates":
        """`count` consecutive rows."""
        offsets = self.offsets[first : first + count + 1]
        begin, end = int(offsets[0]), int(offsets[-1])
        return Candidates(self.values[begin:end], offsets - begin, self.owner[begin:end] - first)

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors to save under `name` and `name`_offsets."""
        return {name: self.values, f"{name}_offsets": self.offsets}


Choices = ActionMask | Candidates


class _Repeat(torch.autograd.Function):
    """y_j = x_owner(j); dL/dx_i is the sum of dL/dy_j over the candidates j of row i, in their order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, owner: Tensor, offsets: Tensor) -> Tensor:
        ctx.save_for_backward(owner, offsets)
        return x.index_select(0, owner)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        owner, offsets = ctx.saved_tensors
        gradient = gradients[0]
        if gradient.device.type == "cpu":  # index_add_ is several times as fast there, and adds in order; not on a GPU
            added = gradient.new_zeros(len(offsets) - 1, *gradient.shape[1:])
            return added.index_add_(0, owner, gradient), None, None
        return _segments(gradient.contiguous(), offsets, "sum"), None, None


def _segments(x: Tensor, offsets: Tensor, how: str) -> Tensor:
    return torch.segment_reduce(x, how, offsets=offsets, axis=0, unsafe=True)


def _at(values: Tensor, position: Tensor) -> Tensor:
    """The values [m, ...] at positions [N]; 0 where the position is m."""
    return torch.cat([values, values.new_zeros(1, *values.shape[1:])]).index_select(0, position)
