"""Policy and value networks.

Shapes: N rows, O observation, P parameters of the action distribution.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.envs.spec import EnvSpec
from lockstep.experience.numpy_actor import NumpyActor
from lockstep.run import NetworkConfig
from lockstep.torch.distributions import distribution_of
from lockstep.torch.encoders import Convolutions, Impala, Mlp, make_encoder, own_network
from lockstep.torch.q_networks import Head, QNetwork, QPolicy
from lockstep.torch.scoring.policy import ScoringPolicy


class ActorCritic(nn.Module):
    """Action distribution parameters and value of an observation: two networks, or one body with two heads."""

    def __init__(self, spec: EnvSpec, num_parameters: int, config: NetworkConfig) -> None:
        super().__init__()
        encoder = make_encoder(spec, config)
        images = not isinstance(encoder, Mlp)
        self.body, self.bodies = None, None
        if images if config.shared is None else config.shared:
            self.body = encoder
        elif images:
            self.bodies = nn.ModuleList([encoder, make_encoder(spec, config)])
        before = (encoder.num_features,) if self.body or images else (spec.observation_size, *config.hidden)
        self.actor = Mlp((*before, num_parameters), config.activation, last_gain=0.01)
        self.critic = Mlp((*before, 1), config.activation, last_gain=1.0)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """[N, O] to distribution parameters [N, P] and value [N]."""
        if self.bodies is not None:
            seen, valued = (body(observation) for body in self.bodies)
        else:
            seen = valued = observation if self.body is None else self.body(observation)
        return self.actor(seen), self.critic(valued).squeeze(-1)


class Network(Protocol):
    """What a network of your own does (`network.module`): called as `YourClass(observation_size, num_parameters)`."""

    def __call__(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """[N, O] to distribution parameters [N, P] and value [N]."""
        ...


class Policy(nn.Module):
    """A network and the distribution it parameterises.

    Args:
        spec: of the environments.
        config: of the network.
        seed: of the initial parameters.

    Attributes:
        spec: of the environments.
        network: observations [N, *O] to distribution parameters [N, P] and values [N].
        distribution: of the actions; draws them in numpy, and gives log-probabilities and entropies in torch.
    """

    def __init__(self, spec: EnvSpec, config: NetworkConfig, seed: int = 0) -> None:
        super().__init__()
        self.spec = spec
        self.distribution = distribution_of(spec.action, config.initial_log_std)
        parameters = self.distribution.num_parameters
        if config.module is None:
            self.network: nn.Module = ActorCritic(spec, parameters, config)
        else:
            self.network = own_network(config.module, spec.observation_size, parameters, seed)
        generator = torch.Generator().manual_seed(seed)
        for module in self.network.modules():
            if isinstance(module, (Mlp, Convolutions, Impala)):
                module.initialize(generator)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """[N, O] to distribution parameters [N, P] and value [N]."""
        return self.network(observation)


AnyPolicy = Policy | QPolicy | ScoringPolicy
"""Of whatever algorithm: observations to what actions are drawn from, and a value."""


class TorchActor:
    """Distribution parameters by torch, for any network on any device."""

    def __init__(self, policy: AnyPolicy, device: torch.device) -> None:
        self._policy, self._device = policy, device

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        """[..., N, O] to [..., N, P]; one call for each shard of the leading axis, so kernels keep its shape."""
        assert self._policy.spec is not None
        if observation.ndim > 1 + len(self._policy.spec.observation_shape):
            return np.stack([self(part) for part in observation])
        with torch.inference_mode():
            parameters, _ = self._policy(torch.from_numpy(np.ascontiguousarray(observation)).to(self._device))
        return parameters.float().cpu().numpy()


def actor_of(policy: AnyPolicy, device: torch.device) -> NumpyActor | TorchActor:
    """The cheapest exact way to act: numpy for linear layers on a CPU, torch for all else. Noisy layers draw no noise.

    Returns:
        A function of observations [..., N, *O] that returns distribution parameters [..., N, P], both of numpy.
    """
    chain = _linear(policy.network)
    if device.type == "cpu" and chain and policy.spec is not None and policy.spec.image is None:
        layers = [layer for part in chain for layer in part.layers]
        # The memory of the parameters themselves: it always acts with the newest.
        memory = [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in layers]
        return NumpyActor(memory, chain[-1].activation)
    return TorchActor(policy, device)


def multiplications(policy: nn.Module) -> int:
    """Of one row, about: how much work a forward pass is. Convolutions of your own count as if they had one pixel."""
    encoders = [part for part in policy.modules() if isinstance(part, (Convolutions, Impala))]
    inside = sum(parameter.numel() for encoder in encoders for parameter in encoder.parameters())
    rest = sum(parameter.numel() for parameter in policy.parameters()) - inside
    return rest + sum(encoder.uses for encoder in encoders)


def _linear(network: nn.Module) -> Sequence[Mlp | Head]:
    """What makes the parameters of the action distribution, if it is linear layers one after another."""
    if isinstance(network, ActorCritic):
        return [network.body, network.actor] if isinstance(network.body, Mlp) else [network.actor]
    if isinstance(network, QNetwork) and isinstance(network.encoder, Mlp) and network.plain:
        return [network.encoder, network.advantage]
    return []
