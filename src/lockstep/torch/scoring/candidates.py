"""Networks that score actions described by features.

Shapes: N rows, S features of a state, K of an action, m candidates of all rows together, A actions that every row may
take, H units, O outputs for an action.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lockstep.config.network import ScoreNetworkConfig
from lockstep.torch.encoders import ACTIVATIONS, Mlp
from lockstep.torch.products import linear
from lockstep.torch.scoring.choices import Candidates, Choices


class CandidateNetwork(nn.Module):
    """Linear layers from a state and an action [s; a] to a score (Gauci et al., 2018, arXiv:1811.00260, section 5.2).

    The first layer is W_s s + W_a a + b. If a state has several actions, W_s s + b is computed once for all of them.

    With `dueling`, V(s) + A(s, a) of two such networks (Wang et al., 2016, arXiv:1511.06581). The mean of A is not
    subtracted: the value of an action must not depend on which other actions are possible.

    Args:
        state_size: S.
        action_size: K.
        config: hidden layers.
        outputs: O; `None`: one output, without an axis for it.
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

    def forward(self, state: Tensor, candidates: Tensor, owner: Tensor) -> Tensor:
        """Score candidates [m, K], each in the state [N, S] number `owner` [m]; [m] or [m, O]."""
        return self._scores(state, candidates, lambda x: x.index_select(0, owner))

    def of_choices(self, state: Tensor, choices: Choices) -> Tensor:
        """As `forward`, for learning: its gradient has the same bits each time, also on a GPU."""
        assert isinstance(choices, Candidates)
        return self._scores(state, choices.values, choices.repeat)

    def of_one(self, state: Tensor, action: Tensor) -> Tensor:
        """Score one action [N, K] in each state [N, S]; [N] or [N, O]."""
        advantage = self.body(torch.cat([state, action], -1))
        return self._shaped(advantage if self.value is None else advantage + self.value(state))

    def of_all(self, state: Tensor, actions: Tensor) -> Tensor:
        """Score the same actions [A, K] in each state [N, S]; [N, A] or [N, A, O]."""
        first, weight = self._first_layer(state)
        advantage = self._later_layers(first.unsqueeze(1) + F.linear(actions, weight))
        return self._shaped(advantage if self.value is None else advantage + self.value(state).unsqueeze(1))

    def _scores(self, state: Tensor, candidates: Tensor, repeat: Callable[[Tensor], Tensor]) -> Tensor:
        first, weight = self._first_layer(state)
        x = repeat(first)
        # In place: x is the largest tensor here, and nothing else reads it.
        x = x.addmm_(candidates.to(x.dtype), weight.T.to(x.dtype))
        advantage = self._later_layers(x)
        return self._shaped(advantage if self.value is None else advantage + repeat(self.value(state)))

    def _first_layer(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """The first layer's part that depends on the state [N, H], and its weight for actions [H, K]."""
        layer = self.body.layers[0]
        weight = layer.weight
        return F.linear(state, weight[:, : self.state_size], layer.bias), weight[:, self.state_size :]

    def _later_layers(self, x: Tensor) -> Tensor:
        activation = ACTIVATIONS[self.body.activation]
        for layer in list(self.body.layers)[1:]:
            x = linear(activation(x), layer.weight, layer.bias)
        return x

    def _shaped(self, advantage: Tensor) -> Tensor:
        return advantage.squeeze(-1) if self.outputs is None else advantage
