"""Policy and value networks.

Shapes: N rows, O observation, P parameters of the action distribution.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol, cast

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lockstep.envs.load import load_object
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.run import NetworkConfig
from lockstep.torch.distributions import distribution_of

_TORCH = {"tanh": torch.tanh, "relu": torch.relu, "elu": F.elu}


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def _elu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


_NUMPY: dict[str, Callable[[np.ndarray], np.ndarray]] = {"tanh": np.tanh, "relu": _relu, "elu": _elu}


class Mlp(nn.Module):
    """Linear layers with an activation between them, and after the last one if `activate_last`."""

    def __init__(
        self, sizes: tuple[int, ...], activation: str, *, last_gain: float, activate_last: bool = False
    ) -> None:
        super().__init__()
        layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.layers = cast("Sequence[nn.Linear]", layers)  # torch types its items as any module
        self.activation, self.last_gain, self.activate_last = activation, last_gain, activate_last

    def initialize(self, generator: torch.Generator) -> None:
        """Orthogonal weights (Saxe et al., 2014) with gain sqrt(2), the last layer with `last_gain`; biases 0."""
        for i, layer in enumerate(self.layers):
            last = i == len(self.layers) - 1
            nn.init.orthogonal_(layer.weight, self.last_gain if last else math.sqrt(2), generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[N, first size] to [N, last size]."""
        activation, last = _TORCH[self.activation], len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            x = F.linear(x, layer.weight, layer.bias)
            if i < last or self.activate_last:
                x = activation(x)
        return x


class ActorCritic(nn.Module):
    """Action distribution parameters and value of an observation: two networks, or one body with two heads."""

    def __init__(self, observation_size: int, num_parameters: int, config: NetworkConfig) -> None:
        super().__init__()
        sizes = (observation_size, *config.hidden)
        if config.shared:
            self.body = Mlp(sizes, config.activation, last_gain=math.sqrt(2), activate_last=True)
            self.actor = Mlp((sizes[-1], num_parameters), config.activation, last_gain=0.01)
            self.critic = Mlp((sizes[-1], 1), config.activation, last_gain=1.0)
        else:
            self.body = None
            self.actor = Mlp((*sizes, num_parameters), config.activation, last_gain=0.01)
            self.critic = Mlp((*sizes, 1), config.activation, last_gain=1.0)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """[N, O] to distribution parameters [N, P] and value [N]."""
        features = observation if self.body is None else self.body(observation)
        return self.actor(features), self.critic(features).squeeze(-1)


class Network(Protocol):
    """What a network of your own does (`network.module`): called as `YourClass(observation_size, num_parameters)`."""

    def __call__(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """[N, O] to distribution parameters [N, P] and value [N]."""
        ...


class Policy(nn.Module):
    """A network and the distribution it parameterises. Attributes: `spec`, `network`, `distribution`."""

    def __init__(self, spec: EnvSpec, config: NetworkConfig, seed: int = 0) -> None:
        super().__init__()
        self.spec = spec
        self.distribution = distribution_of(spec.action, config.initial_log_std)
        parameters = self.distribution.num_parameters
        if config.module is None:
            self.network: nn.Module = ActorCritic(spec.observation_size, parameters, config)
        else:
            with torch.random.fork_rng(devices=[]):  # the user's own initialisation is the same on every rank too
                torch.manual_seed(seed)
                self.network = _own(config.module, spec.observation_size, parameters)
        generator = torch.Generator().manual_seed(seed)
        for module in self.network.modules():
            if isinstance(module, Mlp):
                module.initialize(generator)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """[N, O] to distribution parameters [N, P] and value [N]."""
        return self.network(observation)


class NumpyActor:
    """Distribution parameters by numpy, for networks of linear layers on a CPU: a third of torch's time for few rows.

    Reads the parameters where they lie, so it always acts with the newest. A leading axis of shards is not mixed into
    the matrix product: each shard's rows are multiplied by a kernel of the shard's own shape, whatever rank holds them.
    """

    def __init__(self, network: ActorCritic) -> None:
        chain = [network.actor] if network.body is None else [network.body, network.actor]
        layers = [(layer, mlp) for mlp in chain for layer in mlp.layers]
        self._layers = [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer, _ in layers]
        self._activation = _NUMPY[network.actor.activation]

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        """[..., N, O] to [..., N, P]."""
        x, last = observation, len(self._layers) - 1
        for i, (weight, bias) in enumerate(self._layers):
            x = x @ weight
            x += bias
            if i < last:
                x = self._activation(x)
        return x


class TorchActor:
    """Distribution parameters by torch, for any network on any device."""

    def __init__(self, policy: Policy, device: torch.device) -> None:
        self._policy, self._device = policy, device

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        """[..., N, O] to [..., N, P]; one call for each shard of the leading axis, so kernels keep its shape."""
        if observation.ndim > 2:
            return np.stack([self(part) for part in observation])
        with torch.inference_mode():
            parameters, _ = self._policy(torch.from_numpy(np.ascontiguousarray(observation)).to(self._device))
        return parameters.float().cpu().numpy()


def actor_of(policy: Policy, device: torch.device) -> NumpyActor | TorchActor:
    """The cheapest exact way to act."""
    if device.type == "cpu" and isinstance(policy.network, ActorCritic):
        return NumpyActor(policy.network)
    return TorchActor(policy, device)


def _own(path: str, observation_size: int, num_parameters: int) -> nn.Module:
    network = load_object(path, "network.module")(observation_size, num_parameters)
    if not isinstance(network, nn.Module):
        raise ConfigError(f"network.module={path} made a {type(network).__name__}, not a torch.nn.Module")
    return network
