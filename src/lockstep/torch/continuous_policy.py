"""Policies for bounded continuous actions, with their critics: the networks of SAC and TD3.

Shapes: N rows, O observation, D dimensions of an action, I inputs of a layer, H its outputs, C critics.
"""

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.config.network import NetworkConfig
from lockstep.envs.spec import EnvSpec
from lockstep.experience.sampling import NoisyDeterministic
from lockstep.torch.distributions import SquashedGaussian
from lockstep.torch.encoders import ACTIVATIONS, Mlp
from lockstep.torch.products import batched_linear


class StackedLinear(nn.Module):
    """C linear layers of the same size, each with its own input: weights [C, H, I], biases [C, H]."""

    def __init__(self, count: int, size: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, out, size))
        self.bias = nn.Parameter(torch.empty(count, out))

    def forward(self, x: Tensor) -> Tensor:
        """[C, N, I] to [C, N, H]; fewer inputs are those of the first layers."""
        weight, bias = self.weight, self.bias
        if len(x) < len(weight):
            weight, bias = weight[: len(x)], bias[: len(x)]
        return batched_linear(x, weight, bias)


class StackedLayerNorm(nn.Module):
    """C layer normalizations (Ba et al., 2016, arXiv:1607.06450), each with its own scale and shift [C, H]."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(count, size))
        self.bias = nn.Parameter(torch.zeros(count, size))

    def forward(self, x: Tensor) -> Tensor:
        """[C, N, H] to [C, N, H]; fewer inputs are those of the first normalizations."""
        weight, bias = self.weight[: len(x)], self.bias[: len(x)]
        return torch.addcmul(bias.unsqueeze(1), F.layer_norm(x, x.shape[-1:]), weight.unsqueeze(1))


class Critics(nn.Module):
    """C value networks Q(s, a) of the same shape, computed together.

    Between two linear layers: dropout, layer normalization, activation, as in DroQ (Hiraoka et al., 2022,
    arXiv:2110.02034); the first two only if they are switched on.

    Args:
        spec: of the environments.
        network: config of the layers.
        algorithm: config of the critics.

    Attributes:
        generator: draws dropout masks; None: no dropout.
    """

    def __init__(self, spec: EnvSpec, network: NetworkConfig, algorithm: SACConfig | TD3Config) -> None:
        super().__init__()
        count = algorithm.num_critics
        hidden = network.value_hidden
        sizes = (spec.observation_size + spec.action.width, *hidden, 1)
        norms = [StackedLayerNorm(count, size) for size in hidden] if algorithm.layer_norm else []
        self.layers = nn.ModuleList(StackedLinear(count, a, b) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(norms)
        self.activation = network.activation
        self.dropout = algorithm.dropout
        self.generator: torch.Generator | None = None

    def forward(self, observation: Tensor, action: Tensor, count: int | None = None) -> Tensor:
        """[N, O] and actions scaled to [-1, 1], [N, D], to Q [C, N]; `count` computes the first critics alone."""
        last = len(self.layers) - 1
        x = torch.cat([observation, action], -1)
        x = x.expand(count or len(cast(StackedLinear, self.layers[0]).weight), -1, -1)
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i == last:
                break
            if self.generator is not None:
                x = x * self.dropout_mask(x) * (1.0 / (1.0 - self.dropout))
            if self.norms:
                x = self.norms[i](x)
            # In place saves memory traffic; the gradients of the operations before do not need their results.
            x = x.relu_() if self.activation == "relu" else ACTIVATIONS[self.activation](x)
        return x.squeeze(-1)

    def dropout_mask(self, x: Tensor) -> Tensor:
        """Which units [C, N, H] of a hidden layer stay."""
        return torch.rand(x.shape, generator=self.generator, device=x.device) >= self.dropout


class Temperature(nn.Module):
    """The weight of the entropy in SAC, alpha = exp(log alpha); a parameter if it is learned."""

    def __init__(self, algorithm: SACConfig) -> None:
        super().__init__()
        learned = algorithm.alpha is None
        alpha = algorithm.initial_alpha if algorithm.alpha is None else algorithm.alpha
        log_alpha = torch.tensor(math.log(alpha) if alpha > 0 else -math.inf)
        self.log_alpha: Tensor
        if learned:
            self.log_alpha = nn.Parameter(log_alpha)
        else:
            self.register_buffer("log_alpha", log_alpha, persistent=False)

    def forward(self) -> Tensor:
        """Alpha, without gradient."""
        return self.log_alpha.detach().exp()


class ContinuousPolicy(nn.Module):
    """An actor with its action distribution, and its critics.

    Args:
        spec: of the environments; actions are continuous and bounded.
        network: config of the layers.
        algorithm: config of SAC (a squashed normal distribution) or TD3 (one action per observation).
        seed: of the parameters.

    Attributes:
        spec: of the environments.
        algorithm: config of SAC or TD3.
        critics: Q(s, a) of each critic.
        actor: observations [N, O] to parameters of the action distribution [N, P].
        temperature: of SAC; None: TD3.
        distribution: of the actions.
    """

    def __init__(self, spec: EnvSpec, network: NetworkConfig, algorithm: SACConfig | TD3Config, seed: int = 0) -> None:
        super().__init__()
        self.spec = spec
        self.algorithm = algorithm
        self.distribution = (
            SquashedGaussian(spec.action)
            if isinstance(algorithm, SACConfig)
            else NoisyDeterministic(spec.action, algorithm.exploration_noise)
        )
        # In this order in the flat buffer: the critics, then what moves with each step of the policy.
        self.critics = Critics(spec, network, algorithm)
        sizes = (spec.observation_size, *network.hidden, self.distribution.num_parameters)
        self.actor = Mlp(sizes, network.activation, last_gain=1.0)
        self.temperature = Temperature(algorithm) if isinstance(algorithm, SACConfig) else None
        self.center: Tensor
        self.half_range: Tensor
        self.register_buffer("center", torch.from_numpy(self.distribution.center), persistent=False)
        self.register_buffer("half_range", torch.from_numpy(self.distribution.half_range), persistent=False)
        generator = torch.Generator().manual_seed(seed)
        orthogonal = network.initialization == "orthogonal"
        for layers in (self.critics.layers, self.actor.layers):
            _initialize(cast("Sequence[StackedLinear | nn.Linear]", layers), generator, orthogonal=orthogonal)

    @property
    def network(self) -> Mlp:
        """The network that acts."""
        return self.actor

    def with_actor(self, actor: Mlp) -> "ContinuousPolicy":
        """A policy with another actor, which shares all else."""
        other = copy.copy(self)
        other._modules = {**self._modules, "actor": actor}
        return other

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """[N, O] to distribution parameters [N, P], and NaN [N] in place of a value, which needs an action."""
        parameters = self.actor(observation)
        return parameters, torch.full_like(parameters[:, 0], math.nan)

    def scaled(self, action: Tensor) -> Tensor:
        """Actions [N, D] of the environment, scaled to [-1, 1]."""
        return (action - self.center) / self.half_range

    def unscaled(self, action: Tensor) -> Tensor:
        """The inverse of `scaled`."""
        return self.center + self.half_range * action


def _initialize(layers: Sequence[StackedLinear | nn.Linear], generator: torch.Generator, *, orthogonal: bool) -> None:
    """Draw weights and biases uniformly within 1 / sqrt(I), as torch's linear layers do.

    With `orthogonal`: weights of gain sqrt(2), 1 in the last layer, and biases 0.
    """
    for i, layer in enumerate(layers):
        if orthogonal:
            gain = 1.0 if i == len(layers) - 1 else math.sqrt(2)
            for weight in layer.weight if layer.weight.ndim == 3 else [layer.weight]:  # of each critic
                nn.init.orthogonal_(weight, gain, generator=generator)
            nn.init.zeros_(layer.bias)
            continue
        bound = 1.0 / math.sqrt(layer.weight.shape[-1])
        for parameter in (layer.weight, layer.bias):
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
