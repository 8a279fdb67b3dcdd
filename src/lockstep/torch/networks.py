"""Policy and value networks.

Shapes: N rows, O observation, C the critic's own observation, P parameters of the action distribution, S numbers of a
recurrent policy's state, of which the actor has the first A; L steps of a sequence.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.algorithms.all import AlgorithmConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.config.network import NetworkConfig
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.acting import Actor, RecurrentActor
from lockstep.experience.numpy_actor import Layer, NumpyActor, NumpyCell, RecurrentNumpyActor
from lockstep.session.task_checks import check_critic_observation
from lockstep.torch.capture import Capture
from lockstep.torch.continuous_policy import ContinuousPolicy
from lockstep.torch.distributions import distribution_of
from lockstep.torch.encoders import (
    Convolutions,
    ImagesAndNumbers,
    Impala,
    Mlp,
    as_numbers,
    make_critic_encoder,
    make_encoder,
)
from lockstep.torch.q_networks import Head, QNetwork, QPolicy
from lockstep.torch.recurrent import RecurrentLayers, Sequences
from lockstep.torch.scoring.offline_policy import OfflinePolicy
from lockstep.torch.transfer import StagingBuffers, to_device
from lockstep.torch.user_network import described_outputs, own_network


class ActorCriticNetwork(nn.Module):
    """Action distribution parameters and value of an observation: two networks, or one body with two heads.

    With a `critic_size` the value network has an observation of its own [C] (asymmetric actor-critic; Pinto et al.,
    2018, arXiv:1710.06542).

    Where numbers stand beside images, hidden layers precede the outputs, as in networks of vectors.

    Recurrent layers precede the heads: of each network, or one of the shared body.

    Attributes:
        state_size: S.
        actor_state_size: A.
    """

    def __init__(self, spec: EnvSpec, num_parameters: int, config: NetworkConfig) -> None:
        super().__init__()
        encoder = make_encoder(spec, config)
        images = not isinstance(encoder, Mlp)
        self.body = None
        self.bodies = None
        self.critic_size = spec.critic_size
        if spec.critic_size is not None:
            self.body = encoder if images else None
        elif images if config.shared is None else config.shared:
            self.body = encoder
        elif images:
            self.bodies = nn.ModuleList([encoder, make_encoder(spec, config)])
        if isinstance(encoder, ImagesAndNumbers):
            actor_sizes = (encoder.num_features, *config.hidden)
            critic_sizes = (encoder.num_features, *config.value_hidden)
        elif self.body or images:
            actor_sizes = critic_sizes = (encoder.num_features,)
        else:
            actor_sizes = (spec.observation_size, *config.hidden)
            critic_sizes = (spec.observation_size, *config.value_hidden)
        self.critic_body = make_critic_encoder(spec, config)
        if spec.critic_size is not None:
            size = spec.critic_size if self.critic_body is None else self.critic_body.num_features
            critic_sizes = (size, *config.value_hidden)
        self.core, self.critic_core = None, None
        if config.recurrent != "none":
            size, layers = config.recurrent_size, config.recurrent_layers
            self.core = RecurrentLayers(config.recurrent, actor_sizes[0], size, layers)
            if self.body is None or spec.critic_size is not None:
                self.critic_core = RecurrentLayers(config.recurrent, critic_sizes[0], size, layers)
            actor_sizes, critic_sizes = (size, *actor_sizes[1:]), (size, *critic_sizes[1:])
        self.actor_state_size = 0 if self.core is None else self.core.state_size
        self.state_size = self.actor_state_size * (1 if self.critic_core is None else 2)
        orthogonal = config.initialization != "uniform"
        self.actor = Mlp((*actor_sizes, num_parameters), config.activation, last_gain=0.01, orthogonal=orthogonal)
        self.critic = Mlp((*critic_sizes, 1), config.activation, last_gain=1.0, orthogonal=orthogonal)

    def forward(
        self, observation: Tensor, critic: Tensor | None = None, sequences: Sequences | None = None
    ) -> tuple[Tensor, Tensor]:
        """[N, O] and the critic's own [N, C] to distribution parameters [N, P] and value [N].

        Where the critic's observation is needed but not given, as in evaluations, the value is NaN.
        """
        features = self.features(observation, critic)
        if sequences is not None:
            return self.unroll(*features, sequences)[:2]
        parameters = self.actor(features[0])
        if features[1] is None:
            return parameters, torch.full_like(parameters[:, 0], math.nan)
        return parameters, self.critic(features[1]).squeeze(-1)

    def features(self, observation: Tensor, critic: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The inputs [N, ...] of actor and critic, after the encoders of images or a shared body.

        None for a critic whose own observation is not given.
        """
        if self.bodies is not None:
            of_actor, of_critic = (body(observation) for body in self.bodies)
            return of_actor, of_critic
        features = as_numbers(observation) if self.body is None else self.body(observation)
        if self.critic_size is None:
            return features, features
        return features, critic if critic is None or self.critic_body is None else self.critic_body(critic)

    def unroll(self, of_actor: Tensor, of_critic: Tensor | None, sequences: Sequences) -> tuple[Tensor, Tensor, Tensor]:
        """Run a recurrent policy over `features` of rows [L * N].

        Returns:
            Distribution parameters, values, and the states after each row [L * N, S].
        """
        assert self.core is not None and of_critic is not None
        steps = sequences.begins.shape
        actor_state = sequences.state[:, : self.actor_state_size]
        out, states = self.core(of_actor.unflatten(0, steps), Sequences(actor_state, sequences.begins))
        critic_out = out
        if self.critic_core is not None:
            critic_state = sequences.state[:, self.actor_state_size :]
            critic_out, more = self.critic_core(
                of_critic.unflatten(0, steps), Sequences(critic_state, sequences.begins)
            )
            states = torch.cat([states, more], -1)
        return self.actor(out.flatten(0, 1)), self.critic(critic_out.flatten(0, 1)).squeeze(-1), states.flatten(0, 1)

    def act(self, observation: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """[N, O] and the actor's state [N, A] to distribution parameters and the state after this step."""
        assert self.core is not None
        encoder = self.body if self.bodies is None else self.bodies[0]
        seen = as_numbers(observation) if encoder is None else encoder(observation)
        features, state = self.core.step(seen, state)
        return self.actor(features), state


class Policy(nn.Module):
    """A network and the distribution it parameterises.

    Args:
        spec: of the environments.
        config: of the network.
        seed: of the initial parameters.
        trains: False: the policy only acts, and a `network.module` may have dropout.
        algorithm: by which it learns, for its policy file; None: PPO with default settings.

    Attributes:
        spec: of the environments.
        algorithm: by which it learns.
        network: observations [N, *O] (and [N, C]) to distribution parameters [N, P] and values [N]. One of
            `network.module` is in evaluation mode, except while `PPO` computes its loss.
        distribution: of the actions; samples in numpy, and computes log-probabilities and entropies in torch.
        state_size: S; 0 for a policy without recurrent layers.
        actor_state_size: A.
    """

    def __init__(
        self,
        spec: EnvSpec,
        config: NetworkConfig,
        seed: int = 0,
        *,
        trains: bool = True,
        algorithm: AlgorithmConfig | None = None,
    ) -> None:
        super().__init__()
        check_critic_observation(config, spec)
        self.spec = spec
        self.algorithm = algorithm or PPOConfig()
        self.distribution = distribution_of(
            spec.action, config.initial_log_std, state_dependent_std=config.state_dependent_std
        )
        parameters = self.distribution.num_parameters
        self.state_size, self.actor_state_size = 0, 0
        if config.module is None:
            network = ActorCriticNetwork(spec, parameters, config)
            self.network: nn.Module = network
            self.state_size, self.actor_state_size = network.state_size, network.actor_state_size
            generator = torch.Generator().manual_seed(seed)
            for module in network.modules():
                if isinstance(module, (Mlp, Convolutions, Impala, RecurrentLayers)):
                    module.initialize(generator)
        else:
            self.network, outputs = own_network(config.module, spec, parameters, seed, trains=trains)
            if described_outputs(outputs) != f"([2, {parameters}], [2])":
                raise ConfigError(
                    f"network.module={config.module} made {described_outputs(outputs)} of 2 observations; algo=ppo "
                    f"needs parameters of the action distribution and values, ([2, {parameters}], [2]): see "
                    "docs/networks.md"
                )

    def forward(
        self, observation: Tensor, critic: Tensor | None = None, sequences: Sequences | None = None
    ) -> tuple[Tensor, Tensor]:
        """[N, O], and [N, C] if the spec has a `critic_size`, to distribution parameters [N, P] and value [N].

        Args:
            observation: [N, *O].
            critic: [N, C], the critic's own.
            sequences: that the rows form; needed by a recurrent policy, and only by one.
        """
        if sequences is not None:
            return self.network(observation, critic, sequences)
        return self.network(observation) if critic is None else self.network(observation, critic)

    @property
    def recurrent(self) -> ActorCriticNetwork:
        """The network of a recurrent policy."""
        assert isinstance(self.network, ActorCriticNetwork) and self.state_size > 0
        return self.network


ActingPolicy = Policy | QPolicy | ContinuousPolicy
"""A policy of an algorithm that learns in environments."""
AnyPolicy = ActingPolicy | OfflinePolicy
"""A policy of any algorithm: observations to parameters of the action distribution, and a value."""


class TorchActor:
    """Compute distribution parameters in torch, for any network on any device.

    Args:
        policy: always with its newest parameters.
        device: of the policy.
        capture: captures the forward pass; None: it runs without a graph.
    """

    def __init__(self, policy: AnyPolicy, device: torch.device, capture: Capture | None = None) -> None:
        self._policy = policy
        self._staging = StagingBuffers(device)
        self._forward = self._parameters if capture is None else capture(self._parameters)

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        """[..., N, O] to [..., N, P]; one copy to the device and one back.

        There is one forward pass per shard, so that its shape does not depend on the number of ranks.
        """
        seen = self._staging.to_device(np.ascontiguousarray(observation))
        with torch.inference_mode():
            parameters = self._forward([seen])
        return self._staging.to_host(parameters)

    def _parameters(self, inputs: Sequence[Tensor]) -> Tensor:
        """[..., N, O] in a list to [..., N, P], on the device."""
        assert self._policy.spec is not None
        seen = inputs[0]
        ahead = seen.shape[: seen.ndim - 1 - len(self._policy.spec.observation_shape)]
        parts = seen.flatten(0, len(ahead) - 1) if ahead else seen.unsqueeze(0)
        outputs = [self._policy(part)[0].float() for part in parts]
        return torch.stack(outputs).view(*ahead, *outputs[0].shape) if ahead else outputs[0]


class RecurrentTorchActor:
    """`TorchActor` of a recurrent policy."""

    def __init__(self, policy: Policy, device: torch.device, capture: Capture | None = None) -> None:
        self._policy = policy
        self._device = device
        self._forward = self._act if capture is None else capture(self._act)
        self.state_size = policy.actor_state_size

    def __call__(self, observation: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[..., N, O] and the actor's states [..., N, A] to [..., N, P] and the states after this step."""
        if observation.ndim > 1 + len(self._policy.spec.observation_shape):
            parts = [self(*part) for part in zip(observation, state, strict=True)]
            parameters, states = (np.stack(column) for column in zip(*parts, strict=True))
            return parameters, states
        tensors = [to_device(np.ascontiguousarray(array), self._device) for array in (observation, state)]
        with torch.inference_mode():
            parameters, after = self._forward(tensors)
        return parameters.cpu().numpy(), after.cpu().numpy()

    def _act(self, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Observations and states in a list to parameters and the states after this step, on the device."""
        return self._policy.recurrent.act(*inputs)


def actor_of(policy: AnyPolicy, device: torch.device, capture: Capture | None = None) -> Actor | RecurrentActor:
    """The actor of a policy: numpy on a CPU where that is faster, for linear and recurrent layers, else torch.

    Args:
        policy: always acts with its newest parameters.
        device: of the policy.
        capture: captures the forward pass on a GPU; None: it runs without a graph.

    Returns:
        A function from observations [..., N, *O] to distribution parameters [..., N, P], both numpy arrays, without
        learned noise; that of a recurrent policy also takes and returns states.
    """
    if isinstance(policy, Policy) and policy.state_size > 0:
        return _recurrent_actor_of(policy, device, capture)
    chain = _linear_parts(policy.network)
    if device.type == "cpu" and chain and policy.spec is not None and not policy.spec.has_images:
        return NumpyActor([layer for part in chain for layer in _layers(part)], chain[-1].activation)
    return TorchActor(policy, device, capture)


def _recurrent_actor_of(policy: Policy, device: torch.device, capture: Capture | None) -> RecurrentActor:
    network = policy.recurrent
    if device.type != "cpu" or policy.spec.has_images:
        return RecurrentTorchActor(policy, device, capture)
    assert network.core is not None
    core = {name: parameter.detach().numpy() for name, parameter in network.core.named_parameters()}
    body = _layers(network.body) if isinstance(network.body, Mlp) else []
    return RecurrentNumpyActor(
        [NumpyCell.of(core, layer) for layer in range(network.core.num_layers)],
        _layers(network.actor),
        network.actor.activation,
        body=body,
    )


def _layers(network: Mlp | Head) -> list[Layer]:
    """Arrays that share memory with the parameters, so that the newest are used."""
    return [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in network.layers]


def multiplications(policy: nn.Module) -> int:
    """Estimated multiplications of a forward pass per row. A user's convolutions count as if they had one pixel."""
    encoders = [part for part in policy.modules() if isinstance(part, (Convolutions, Impala))]
    in_encoders = sum(parameter.numel() for encoder in encoders for parameter in encoder.parameters())
    others = sum(parameter.numel() for parameter in policy.parameters()) - in_encoders
    return others + sum(encoder.uses for encoder in encoders)


def _linear_parts(network: nn.Module) -> Sequence[Mlp | Head]:
    """The parts that compute the distribution parameters if they are consecutive linear layers; otherwise empty."""
    if isinstance(network, Mlp):
        return [network]
    if isinstance(network, ActorCriticNetwork):
        return [network.body, network.actor] if isinstance(network.body, Mlp) else [network.actor]
    if isinstance(network, QNetwork) and isinstance(network.encoder, Mlp) and network.plain:
        return [network.encoder, network.advantage]
    return []
