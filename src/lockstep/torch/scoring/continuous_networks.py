"""Networks of continuous actions: critics of a state and an action, and actors.

Actions are scaled to [-1, 1]. Shapes: N rows, S numbers of a state, D dimensions of an action, C critics, J actions of
a row.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from lockstep.config.network import ScoreNetworkConfig
from lockstep.envs.spec import ActionSpec
from lockstep.torch.continuous_policy import StackedLinear
from lockstep.torch.distributions import SquashedGaussian
from lockstep.torch.encoders import ACTIVATIONS, Mlp

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class ScoringCritics(nn.Module):
    """C networks from a state and an action to Q, computed together; they share no parameters.

    Args:
        num_critics: C.
        state_size: S.
        action_size: D.
        config: hidden layers.
    """

    def __init__(self, num_critics: int, state_size: int, action_size: int, config: ScoreNetworkConfig) -> None:
        super().__init__()
        sizes = pairwise((state_size + action_size, *config.hidden, 1))
        self.layers = nn.ModuleList(StackedLinear(num_critics, a, b) for a, b in sizes)
        self.num_critics, self.activation = num_critics, ACTIVATIONS[config.activation]

    def initialize(self, generator: torch.Generator) -> None:
        """Orthogonal weights with gain sqrt(2), the last layer with gain 1; biases 0."""
        last = len(self.layers) - 1
        for i, layer in enumerate(cast("Sequence[StackedLinear]", self.layers)):
            nn.init.zeros_(layer.bias)
            for weight in layer.weight:
                nn.init.orthogonal_(weight, 1.0 if i == last else math.sqrt(2), generator=generator)

    def forward(self, state: Tensor, action: Tensor, count: int | None = None) -> Tensor:
        """Q of one action [N, D], or of J actions [N, J, D], in each state [N, S]; [C, N] or [C, N, J].

        `count` computes the first critics alone.
        """
        if action.ndim == 3:
            state = state.unsqueeze(1).expand(-1, action.shape[1], -1)
            return self(state.flatten(0, 1), action.flatten(0, 1), count).unflatten(1, action.shape[:2])
        x = torch.cat([state, action], -1).expand(count or self.num_critics, -1, -1)
        for i, layer in enumerate(self.layers):
            x = layer(x if i == 0 else self.activation(x))
        return x.squeeze(-1)


class DeterministicActor(nn.Module):
    """a = tanh(f(s)), parameters [N, D] of no distribution."""

    def __init__(self, state_size: int, action_size: int, config: ScoreNetworkConfig) -> None:
        super().__init__()
        self.body = Mlp((state_size, *config.hidden, action_size), config.activation, last_gain=0.01)

    def forward(self, state: Tensor) -> Tensor:
        """The actions [N, D] of states [N, S]."""
        return self.body(state).tanh()

    def mode(self, parameters: Tensor) -> Tensor:
        """The action itself [N, D]."""
        return parameters

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """The action itself [N, D]."""
        return parameters


class GaussianActor(nn.Module):
    """Normal distributions with mean tanh(f(s)) and a standard deviation for each dimension, clipped to the bounds.

    Parameters [N, 2 D] are means and log standard deviations.
    """

    def __init__(self, state_size: int, action_size: int, config: ScoreNetworkConfig) -> None:
        super().__init__()
        self.body = Mlp((state_size, *config.hidden, action_size), config.activation, last_gain=0.01)
        self.log_std = nn.Parameter(torch.zeros(action_size))

    def forward(self, state: Tensor) -> Tensor:
        """Parameters [N, 2 D] in states [N, S]."""
        mean = self.body(state).tanh()
        return torch.cat([mean, self.log_std.clamp(-5.0, 2.0).expand_as(mean)], -1)

    def mode(self, parameters: Tensor) -> Tensor:
        """The mean [N, D]."""
        return parameters.chunk(2, -1)[0]

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Mean + standard deviation * noise, clipped [N, D]; noise is standard normal."""
        mean, log_std = parameters.chunk(2, -1)
        return torch.addcmul(mean, log_std.exp(), noise).clamp(-1.0, 1.0)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """The log-density of the normal distributions, before they are clipped [N]; for learning."""
        mean, log_std = parameters.chunk(2, -1)
        scaled = (action - mean) * (-log_std).exp()
        return -(0.5 * scaled.square() + log_std + HALF_LOG_TAU).sum(-1)

    def log_density(self, parameters: Tensor, action: Tensor, half_range: Tensor, at_bound: Tensor) -> Tensor:
        """The log-density of actions [N, D] as the policy draws them, in the units of the log [N]; for estimates.

        At a bound it is the logarithm of the probability of all numbers there, which has no unit.

        Args:
            parameters: [N, 2 D].
            action: scaled to [-1, 1].
            half_range: half the distance between the bounds [D].
            at_bound: the smallest magnitude of an action at a bound [D].
        """
        mean, log_std = parameters.double().chunk(2, -1)
        scaled = (action - mean) * (-log_std).exp()
        inside = -(0.5 * scaled.square() + log_std + HALF_LOG_TAU) - half_range.log()
        outwards = (action.sign() * mean - at_bound) * (-log_std).exp()  # deviations by which the mean is at the bound
        clipped = cast(Tensor, torch.special.log_ndtr(outwards))
        return torch.where(action.abs() >= at_bound, clipped, inside).sum(-1)


class SquashedGaussianActor(nn.Module):
    """Normal distributions through tanh, as `SquashedGaussian`, for states after preprocessing.

    Parameters [N, 2 D] are means and log standard deviations, before tanh.

    Args:
        state_size: S.
        bounds: of the actions of the log.
        config: hidden layers.
    """

    def __init__(self, state_size: int, bounds: ActionSpec, config: ScoreNetworkConfig) -> None:
        super().__init__()
        self.distribution = SquashedGaussian(bounds)
        sizes = (state_size, *config.hidden, self.distribution.num_parameters)
        self.body = Mlp(sizes, config.activation, last_gain=0.01)

    def forward(self, state: Tensor) -> Tensor:
        """Parameters [N, 2 D] in states [N, S]."""
        return self.body(state)

    def mode(self, parameters: Tensor) -> Tensor:
        """Tanh of the mean [N, D]."""
        return parameters.chunk(2, -1)[0].tanh()

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """tanh(mean + standard deviation * noise) [N, D]; noise is standard normal."""
        return self.sample_with_log_prob(parameters, noise)[0]

    def sample_with_log_prob(self, parameters: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [..., D] and their log-densities [...], for actions scaled to [-1, 1]."""
        return self.distribution.scaled_action_and_log_prob(parameters, noise)

    def log_density(self, parameters: Tensor, action: Tensor, half_range: Tensor, at_bound: Tensor) -> Tensor:
        """The log-density of actions [N, D], in the units of the log [N], as `SquashedGaussian.log_density`."""
        return self.distribution.log_density(parameters, action, half_range, at_bound)


Actor = DeterministicActor | GaussianActor | SquashedGaussianActor
