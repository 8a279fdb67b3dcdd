"""Policy and value networks.

Shapes: N rows, O observation, C the critic's own observation, P parameters of the action distribution.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.numpy_actor import NumpyActor
from lockstep.run import NetworkConfig
from lockstep.torch.distributions import distribution_of
from lockstep.torch.encoders import Convolutions, Impala, Mlp, make_encoder, own_network
from lockstep.torch.q_networks import Head, QNetwork, QPolicy
from lockstep.torch.scoring.policy import ScoringPolicy


class ActorCritic(nn.Module):
    """Action distribution parameters and value of an observation: two networks, or one body with two heads.

    With a `critic_size` the value network has an observation of its own, a vector [C] (asymmetric actor-critic; Pinto
    et al., 2018, arXiv:1710.06542).
    """

    def __init__(self, spec: EnvSpec, num_parameters: int, config: NetworkConfig) -> None:
        super().__init__()
        encoder = make_encoder(spec, config)
        images = not isinstance(encoder, Mlp)
        self.body = None
        self.bodies = None
        self.critic_size = spec.critic_size
        if spec.critic_size is not None:
            if config.shared:
                raise ConfigError(
                    "network.shared=true: the critic of this task has an observation of its own; use null or false"
                )
            self.body = encoder if images else None
        elif images if config.shared is None else config.shared:
            self.body = encoder
        elif images:
            self.bodies = nn.ModuleList([encoder, make_encoder(spec, config)])
        if self.body or images:
            of_actor = of_critic = (encoder.num_features,)
        else:
            of_actor = (spec.observation_size, *config.hidden)
            of_critic = (spec.observation_size, *config.value_hidden)
        if spec.critic_size is not None:
            of_critic = (spec.critic_size, *config.value_hidden)
        self.actor = Mlp((*of_actor, num_parameters), config.activation, last_gain=0.01)
        self.critic = Mlp((*of_critic, 1), config.activation, last_gain=1.0)

    def forward(self, observation: Tensor, critic: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """[N, O] and the critic's own [N, C] to distribution parameters [N, P] and value [N].

        Where the critic's observation is needed but not given, as in evaluations, the value is NaN.
        """
        if self.bodies is not None:
            actor_features, critic_features = (body(observation) for body in self.bodies)
        else:
            actor_features = critic_features = observation if self.body is None else self.body(observation)
        parameters = self.actor(actor_features)
        if self.critic_size is not None:
            if critic is None:
                return parameters, torch.full_like(parameters[:, 0], math.nan)
            critic_features = critic
        return parameters, self.critic(critic_features).squeeze(-1)


class Policy(nn.Module):
    """A network and the distribution it parameterises.

    Args:
        spec: of the environments.
        config: of the network.
        seed: of the initial parameters.

    Attributes:
        spec: of the environments.
        network: observations [N, *O] (and [N, C]) to distribution parameters [N, P] and values [N].
        distribution: of the actions; samples in numpy, and computes log-probabilities and entropies in torch.
    """

    def __init__(self, spec: EnvSpec, config: NetworkConfig, seed: int = 0) -> None:
        super().__init__()
        self.spec = spec
        self.distribution = distribution_of(
            spec.action, config.initial_log_std, state_dependent_std=config.state_dependent_std
        )
        parameters = self.distribution.num_parameters
        if config.module is None:
            self.network: nn.Module = ActorCritic(spec, parameters, config)
        elif spec.critic_size is not None:
            raise ConfigError(
                f"network.module={config.module} has one observation, and the critic of this task one of its own; "
                "use null"
            )
        else:
            self.network = own_network(config.module, spec.observation_size, parameters, seed)
        generator = torch.Generator().manual_seed(seed)
        for module in self.network.modules():
            if isinstance(module, (Mlp, Convolutions, Impala)):
                module.initialize(generator)

    def forward(self, observation: Tensor, critic: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """[N, O], and [N, C] if the spec has a `critic_size`, to distribution parameters [N, P] and value [N]."""
        return self.network(observation) if critic is None else self.network(observation, critic)


AnyPolicy = Policy | QPolicy | ScoringPolicy
"""A policy of any algorithm: observations to parameters of the action distribution, and a value."""


class TorchActor:
    """Compute distribution parameters in torch, for any network on any device."""

    def __init__(self, policy: AnyPolicy, device: torch.device) -> None:
        self._policy = policy
        self._device = device

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        """[..., N, O] to [..., N, P]; one forward pass per shard, so that its shape does not depend on the ranks."""
        assert self._policy.spec is not None
        if observation.ndim > 1 + len(self._policy.spec.observation_shape):
            return np.stack([self(part) for part in observation])
        with torch.inference_mode():
            parameters, _ = self._policy(torch.from_numpy(np.ascontiguousarray(observation)).to(self._device))
        return parameters.float().cpu().numpy()


def actor_of(policy: AnyPolicy, device: torch.device) -> NumpyActor | TorchActor:
    """The actor of a policy: numpy for linear layers on a CPU, which is faster, else torch. Without learned noise.

    Returns:
        A function from observations [..., N, *O] to distribution parameters [..., N, P], both numpy arrays.
    """
    chain = _linear_parts(policy.network)
    if device.type == "cpu" and chain and policy.spec is not None and policy.spec.image is None:
        layers = [layer for part in chain for layer in part.layers]
        # These arrays share memory with the parameters, so the actor always uses the newest.
        arrays = [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in layers]
        return NumpyActor(arrays, chain[-1].activation)
    return TorchActor(policy, device)


def multiplications(policy: nn.Module) -> int:
    """Estimated multiplications of a forward pass per row. A user's convolutions count as if they had one pixel."""
    encoders = [part for part in policy.modules() if isinstance(part, (Convolutions, Impala))]
    in_encoders = sum(parameter.numel() for encoder in encoders for parameter in encoder.parameters())
    others = sum(parameter.numel() for parameter in policy.parameters()) - in_encoders
    return others + sum(encoder.uses for encoder in encoders)


def _linear_parts(network: nn.Module) -> Sequence[Mlp | Head]:
    """The parts that compute the distribution parameters if they are consecutive linear layers; otherwise empty."""
    if isinstance(network, ActorCritic):
        return [network.body, network.actor] if isinstance(network.body, Mlp) else [network.actor]
    if isinstance(network, QNetwork) and isinstance(network.encoder, Mlp) and network.plain:
        return [network.encoder, network.advantage]
    return []
