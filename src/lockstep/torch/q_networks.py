"""Q networks: plain, dueling, distributional, noisy, and combinations.

Shapes: N rows, O observation, F features, A actions, Z points of a return's distribution (atoms of C51 or quantiles of
QR-DQN), B environments of a shard.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.algorithms.dqn import DQNConfig
from lockstep.config.network import NetworkConfig
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.exploration import EpsilonGreedy, NoisyActor
from lockstep.session.task_checks import check_custom_heads
from lockstep.torch.capture import Capture
from lockstep.torch.encoders import ACTIVATIONS, Convolutions, Impala, Mlp, make_encoder
from lockstep.torch.products import linear
from lockstep.torch.transfer import to_device
from lockstep.torch.user_network import described_outputs, own_network


class NoisyLinear(nn.Module):
    """A linear layer whose weights vary by learned standard deviations.

    Fortunato et al., 2018, arXiv:1706.10295, eq. 9 to 11:

    y = (w + s_w * (f(e_out) f(e_in)^T)) x + b + s_b * f(e_out),  f(e) = sign(e) sqrt|e|,  e standard normal

    Attributes:
        noise: f(e_in) [in] and f(e_out) [out], or one per row, [N, in] and [N, out]; None: y = w x + b. Neither a
            parameter nor a buffer: not learned, not compared between ranks, not saved.
    """

    def __init__(self, size: int, out: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out, size))
        self.weight_std = nn.Parameter(torch.empty(out, size))
        self.bias = nn.Parameter(torch.empty(out))
        self.bias_std = nn.Parameter(torch.empty(out))
        self._std = std
        self.noise: tuple[Tensor, Tensor] | None = None

    def initialize(self, generator: torch.Generator) -> None:
        """Means uniform within 1 / sqrt(in), standard deviations noisy_std / sqrt(in) (section 3.2 of the paper)."""
        _initialize(self.weight, self.bias, generator)
        for deviation in (self.weight_std, self.bias_std):
            nn.init.constant_(deviation, self._std / math.sqrt(self.weight.shape[1]))

    def forward(self, x: Tensor) -> Tensor:
        """[N, in] to [N, out]."""
        y = linear(x, self.weight, self.bias)
        if self.noise is None:
            return y
        # s_w * (out in^T) x = out * (s_w (in * x)): needs no matrix of noise, and allows other noise in each row.
        noise_in, noise_out = self.noise
        return y + noise_out * linear(x * noise_in, self.weight_std, self.bias_std)


class Head(nn.Module):
    """Linear layers behind an encoder, with an activation between them; noisy ones if `noisy_std` is given."""

    def __init__(self, sizes: tuple[int, ...], activation: str, noisy_std: float | None) -> None:
        super().__init__()
        layers = [nn.Linear(a, b) if noisy_std is None else NoisyLinear(a, b, noisy_std) for a, b in pairwise(sizes)]
        self.layers = cast("Sequence[nn.Linear | NoisyLinear]", nn.ModuleList(layers))
        self.activation = activation

    def initialize(self, generator: torch.Generator) -> None:
        """Uniform within 1 / sqrt(in), weights and biases."""
        for layer in self.layers:
            if isinstance(layer, NoisyLinear):
                layer.initialize(generator)
            else:
                _initialize(layer.weight, layer.bias, generator)

    def forward(self, x: Tensor) -> Tensor:
        """[N, first size] to [N, last size]."""
        for i, layer in enumerate(self.layers):
            x = x if i == 0 else ACTIVATIONS[self.activation](x)
            x = layer(x) if isinstance(layer, NoisyLinear) else linear(x, layer.weight, layer.bias)
        return x


def initialize(network: nn.Module, seed: int) -> None:
    """Draw the parameters of all encoders and heads of a network, in their order."""
    generator = torch.Generator().manual_seed(seed)
    for part in network.modules():
        if isinstance(part, Mlp | Convolutions | Impala | Head):
            part.initialize(generator)


class QNetwork(nn.Module):
    """An encoder and its heads: one, or two streams.

    The last hidden layer belongs to the heads: each stream has its own (Wang et al., 2016, arXiv:1511.06581), and it is
    noisy with `noisy`. Attributes: `plain`, whether the output of a single head without noise is Q.
    """

    def __init__(self, spec: EnvSpec, config: NetworkConfig, algorithm: DQNConfig, points: int) -> None:
        super().__init__()
        self.num_actions = spec.action.sizes[0]
        self.points = points
        self.encoder = make_encoder(spec, config, last=False)
        vectors = isinstance(self.encoder, Mlp)
        hidden = config.hidden[-1:] if vectors else (config.features,)
        activation = config.activation if vectors else "relu"
        sizes = (self.encoder.num_features, *hidden)
        std = algorithm.noisy_std if algorithm.noisy else None
        self.advantage = Head((*sizes, self.num_actions * points), activation, std)
        self.value = Head((*sizes, points), activation, std) if algorithm.dueling else None
        self.plain = not algorithm.dueling and not algorithm.noisy and algorithm.value_distribution == "none"

    def forward(self, observation: Tensor) -> Tensor:
        """[N, O] to [N, A Z]: Q, or V + A - mean A over the actions (Wang et al., 2016, eq. 9)."""
        features = self.encoder(observation)
        advantage = self.advantage(features)
        if self.value is None:
            return advantage
        advantage = advantage.view(-1, self.num_actions, self.points)
        value = self.value(features).view(-1, 1, self.points)
        return (value + advantage - advantage.mean(1, keepdim=True)).flatten(1)


class QPolicy(nn.Module):
    """A Q network and its epsilon-greedy action distribution.

    Args:
        spec: of the environments.
        network: config of the encoder; `network.module` is constructed as `YourClass(observation_size, A Z)`, and maps
            observations [N, O] to [N, A Z].
        algorithm: config of the heads.
        seed: of the parameters.
        trains: False: the policy only acts, and a `network.module` may have dropout.

    Attributes:
        spec: of the environments.
        algorithm: config of the heads.
        network: the network; one of `network.module` is in evaluation mode, except while `DQN` computes its loss.
        distribution: epsilon-greedy, with the epsilon of the end of training.
        num_noise: random numbers per draw of noise; 0 without noisy layers.
    """

    def __init__(
        self, spec: EnvSpec, network: NetworkConfig, algorithm: DQNConfig, seed: int = 0, *, trains: bool = True
    ) -> None:
        super().__init__()
        self.spec = spec
        self.algorithm = algorithm
        self.distribution = EpsilonGreedy(spec.action, algorithm.epsilon_range[1])
        self.points = algorithm.num_points
        # Not saved: computed from settings that are.
        atoms = torch.linspace(algorithm.v_min, algorithm.v_max, algorithm.num_atoms)
        self.support: Tensor
        """z of C51 [Z]."""
        self.register_buffer("support", atoms, persistent=False)
        if network.module is None:
            self.network: nn.Module = QNetwork(spec, network, algorithm, self.points)
            initialize(self.network, seed)
        else:
            self.network = _custom_network(network.module, spec, algorithm, self.points, seed, trains=trains)
        self._noisy = [layer for layer in self.network.modules() if isinstance(layer, NoisyLinear)]
        self._noise_sizes = [size for layer in self._noisy for size in reversed(layer.weight.shape)]
        self.num_noise = sum(self._noise_sizes)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """[N, O] to Q [N, A] and the largest Q [N]."""
        q = self.expected(self.outputs(observation))
        return q, q.amax(-1)

    def outputs(self, observation: Tensor) -> Tensor:
        """[N, O] to Q [N, A], or to the return's distribution [N, A, Z]: logits of its atoms, or its quantiles."""
        outputs = self.network(observation)
        distributional = self.algorithm.value_distribution != "none"
        return outputs.view(outputs.shape[0], -1, self.points) if distributional else outputs

    def probability(self, logits: Tensor) -> Tensor:
        """Of each atom of C51, from logits [..., Z]; float32."""
        return logits.float().softmax(-1)

    def expected(self, outputs: Tensor) -> Tensor:
        """Q [N, A] from `outputs`, float32: sum_i p_i z_i of atoms, the mean of quantiles."""
        outputs = outputs.float()
        if self.algorithm.value_distribution == "categorical":
            return (self.probability(outputs) * self.support).sum(-1)
        return outputs if outputs.ndim == 2 else outputs.mean(-1)

    def disable_noise(self) -> None:
        """Use the means of noisy layers, until `set_noise`."""
        for layer in self._noisy:
            layer.noise = None

    def set_noise(self, numbers: np.ndarray | Tensor) -> None:
        """Set the noise from standard normal numbers [num_noise], or one per row [N, num_noise].

        No effect without noisy layers.
        """
        if self._noisy:
            if isinstance(numbers, np.ndarray):
                numbers = to_device(numbers, self._noisy[0].weight.device)
            scaled = numbers.sign() * numbers.abs().sqrt()
            parts = torch.split(scaled, self._noise_sizes, -1)
            for layer, noise_in, noise_out in zip(self._noisy, parts[::2], parts[1::2], strict=True):
                layer.noise = noise_in, noise_out


def noisy_actor(
    policy: QPolicy, device: torch.device, seed: int, envs: Sequence[range], capture: Capture | None = None
) -> NoisyActor:
    """The actor of a policy with noisy layers, whose noise is disabled outside of calls.

    Args:
        policy: the policy.
        device: of the policy.
        seed: of the run.
        envs: the global indices of the environments of each local shard.
        capture: captures the forward pass; None: it runs without a graph.
    """

    def with_noise(inputs: Sequence[Tensor]) -> Tensor:
        observation, noise = inputs
        policy.set_noise(noise)
        q, _ = policy(observation)
        policy.disable_noise()
        return q

    forward = with_noise if capture is None else capture(with_noise)

    def q_values(observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            q = forward([to_device(np.ascontiguousarray(array), device) for array in (observation, noise)])
        return q.cpu().numpy()

    return NoisyActor(q_values, policy.num_noise, seed, envs)


def _initialize(weight: Tensor, bias: Tensor, generator: torch.Generator) -> None:
    bound = 1.0 / math.sqrt(weight.shape[1])
    for parameter in (weight, bias):
        nn.init.uniform_(parameter, -bound, bound, generator=generator)


def _custom_network(
    path: str, spec: EnvSpec, algorithm: DQNConfig, points: int, seed: int, *, trains: bool
) -> nn.Module:
    check_custom_heads(path, algorithm)
    num_outputs = spec.action.sizes[0] * points
    network, outputs = own_network(path, spec, num_outputs, seed, trains=trains)
    if not isinstance(outputs, Tensor) or list(outputs.shape) != [2, num_outputs]:
        raise ConfigError(
            f"network.module={path} made {described_outputs(outputs)} of 2 observations; algo=dqn needs values of "
            f"actions, a tensor [2, {num_outputs}]: see docs/networks.md"
        )
    return network
