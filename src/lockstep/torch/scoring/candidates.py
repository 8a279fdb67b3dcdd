"""Networks that score actions that are features.

Shapes: N rows, S features of a state, K of an action, m candidates of all rows together, A actions that every row may
take, H units, O numbers that are told of an action.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lockstep.run import ScoreNetworkConfig
from lockstep.torch.encoders import ACTIVATIONS, Mlp
from lockstep.torch.layers import linear
from lockstep.torch.scoring.ragged import Candidates, spread


class CandidateNetwork(nn.Module):
    """What is known of an action `a` in a state `s`: linear layers behind [s; a].

    The first layer is W_s s + W_a a + b. Where a state has several actions, W_s s + b is computed once for all of them.

    With `dueling`, V(s) + A(s, a) of two such networks (Wang et al., 2016, arXiv:1511.06581). No mean of A is taken
    off: what an action is worth must not depend on which others are possible beside it.

    Args:
        state_size: S.
        action_size: K.
        config: hidden layers.
        outputs: O; `None`: one number, and no axis for it.
        dueling: two streams, one of the state alone.
    """

    def __init__(
        self,
        state_size: int,
        action_size: int,
        config: ScoreNetworkConfig,
        *,
        outputs: int | None = None,
        dueling: bool = False,
    ) -> None:
        super().__init__()
        inner = (*config.hidden, outputs or 1)
        self.state_size, self.outputs = state_size, outputs
        self.body = Mlp((state_size + action_size, *inner), config.activation, last_gain=1.0)
        self.value = Mlp((state_size, *inner), config.activation, last_gain=1.0) if dueling else None

    def initialize(self, generator: torch.Generator) -> None:
        """Draw the parameters."""
        for part in (self.body, self.value):
            if part is not None:
                part.initialize(generator)

    def forward(self, state: Tensor, candidates: Tensor, owner: Tensor) -> Tensor:
        """Of candidates [m, K], each possible in the state [N, S] number `owner` [m]; to [m], or to [m, O]."""
        return self._told(state, candidates, lambda x: x.index_select(0, owner))

    def of_lists(self, state: Tensor, lists: Candidates) -> Tensor:
        """As `forward`, for learning: its gradient has the same bits each time on a GPU, too."""
        return self._told(state, lists.values, lambda x: spread(x, lists))

    def of_one(self, state: Tensor, action: Tensor) -> Tensor:
        """Of one action [N, K] in each state [N, S]; to [N], or to [N, O]."""
        advantage = self.body(torch.cat([state, action], -1))
        return self._shaped(advantage if self.value is None else advantage + self.value(state))

    def of_all(self, state: Tensor, actions: Tensor) -> Tensor:
        """Of the same actions [A, K] in each state [N, S], to [N, A], or to [N, A, O]."""
        first, weight = self._first(state)
        advantage = self._behind_the_first(first.unsqueeze(1) + F.linear(actions, weight))
        return self._shaped(advantage if self.value is None else advantage + self.value(state).unsqueeze(1))

    def _told(self, state: Tensor, candidates: Tensor, spread_out: Callable[[Tensor], Tensor]) -> Tensor:
        first, weight = self._first(state)
        x = spread_out(first)
        # Added where it lies: x is as large as anything here, and nobody else needs it.
        x = x.addmm_(candidates.to(x.dtype), weight.T.to(x.dtype))
        advantage = self._behind_the_first(x)
        return self._shaped(advantage if self.value is None else advantage + spread_out(self.value(state)))

    def _first(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """What the first layer makes of a state [N, H], and its weight for actions [H, K]."""
        layer = self.body.layers[0]
        weight = layer.weight
        return F.linear(state, weight[:, : self.state_size], layer.bias), weight[:, self.state_size :]

    def _behind_the_first(self, x: Tensor) -> Tensor:
        activation = ACTIVATIONS[self.body.activation]
        for layer in list(self.body.layers)[1:]:
            x = linear(activation(x), layer.weight, layer.bias)
        return x

    def _shaped(self, advantage: Tensor) -> Tensor:
        return advantage.squeeze(-1) if self.outputs is None else advantage


class CandidateHeads(nn.Module):
    """Models of the reward and of a policy's value, for estimates: each of O = 1 + M numbers, the reward first.

    Attributes:
        reward: E[r, metrics | s, a].
        value: the discounted sums of the same that the policy collects from (s, a) on.
    """

    def __init__(self, state_size: int, action_size: int, num_metrics: int, config: ScoreNetworkConfig) -> None:
        super().__init__()
        self.reward = CandidateNetwork(state_size, action_size, config, outputs=1 + num_metrics)
        self.value = CandidateNetwork(state_size, action_size, config, outputs=1 + num_metrics)

    def initialize(self, generator: torch.Generator) -> None:
        """Draw the parameters."""
        self.reward.initialize(generator)
        self.value.initialize(generator)
