"""Policy and value networks.

Shapes: N rows, O observation, C the critic's own observation, P parameters of the action distribution, S numbers of a
recurrent policy's state, of which the actor has the first A; L steps of a sequence.
"""

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.algorithms.all import AlgorithmConfig
from lockstep.algorithms.ppo import PPOConfig
from lockstep.config.network import NetworkConfig
from lockstep.envs.spec import EnvSpec
from lockstep.experience.numpy_actor import Layer, NumpyActor, NumpyCell, RecurrentNumpyActor
from lockstep.experience.rollout import Sampler
from lockstep.jax.continuous_policy import ContinuousPolicy
from lockstep.jax.distributions import LOG_STD, DiagonalGaussian, distribution_of
from lockstep.jax.encoders import (
    Encoder,
    ImagesAndNumbers,
    InitStreams,
    Mlp,
    as_numbers,
    cast_inputs,
    init_streams,
    make_critic_encoder,
    make_encoder,
)
from lockstep.jax.flat import Params, subtree, with_prefix
from lockstep.jax.q_networks import QNetwork, QPolicy
from lockstep.jax.recurrent import RecurrentLayers, Sequences
from lockstep.jax.scoring.offline_policy import OfflinePolicy
from lockstep.jax.user_network import UserNetwork
from lockstep.session.task_checks import check_critic_observation


class ActorCriticNetwork:
    """Actor and critic: two networks, or one shared body with two heads.

    With a `critic_size` the critic has an observation of its own [C] (asymmetric actor-critic; Pinto et al., 2018,
    arXiv:1710.06542).

    Where numbers stand beside images, hidden layers precede the outputs, as in networks of vectors.

    Recurrent layers precede the heads: of each network, or one of the shared body.

    Attributes:
        state_size: S.
        actor_state_size: A.
    """

    def __init__(self, spec: EnvSpec, num_parameters: int, config: NetworkConfig) -> None:
        encoder = make_encoder(spec, config)
        images = not isinstance(encoder, Mlp)
        self.body, self.bodies = None, None
        self.critic_size = spec.critic_size
        if spec.critic_size is not None:
            self.body = encoder if images else None
        elif images if config.shared is None else config.shared:
            self.body = encoder
        elif images:
            self.bodies = (encoder, encoder)  # the same architecture with separate parameters
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

    def initialize(self, draws: InitStreams) -> dict[str, np.ndarray]:
        """Draw initial parameters."""
        parts: dict[str, Encoder | RecurrentLayers] = {"actor": self.actor, "critic": self.critic}
        optional = {"body": self.body, "critic_body": self.critic_body}
        optional |= {"core": self.core, "critic_core": self.critic_core}
        parts |= {name: part for name, part in optional.items() if part is not None}
        for i, body in enumerate(self.bodies or ()):
            parts[f"bodies.{i}"] = body
        params: dict[str, np.ndarray] = {}
        for name, network in parts.items():
            params |= with_prefix(name, network.initialize(lambda key, name=name: draws(f"{name}.{key}")))
        return params

    def apply(self, params: Params, observation: Array, critic: Array | None = None) -> tuple[Array, Array]:
        """[N, O] and the critic's own [N, C] to distribution parameters [N, P] and value [N].

        Where the critic's observation is needed but not given, as in evaluations, the value is NaN.
        """
        actor_features, critic_features = self._features(params, observation, critic)
        if critic_features is None:
            parameters = self.actor.apply(subtree(params, "actor"), actor_features)
            return parameters, jnp.full_like(parameters[:, 0], jnp.nan)
        return self._heads(params, actor_features, critic_features)

    def unroll(
        self, params: Params, observation: Array, sequences: Sequences, critic: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """Run a recurrent policy over rows [L * N, O], and the critic's own [L * N, C].

        Returns:
            Distribution parameters, values, and the states after each row [L * N, S].
        """
        assert self.core is not None
        actor_features, critic_features = self._features(params, observation, critic)
        assert critic_features is not None
        steps, size = sequences.begins.shape, self.actor_state_size

        def run_core(name: str, core: RecurrentLayers, x: Array, state: Array) -> tuple[Array, Array]:
            given = Sequences(state, sequences.begins)
            out, states = core.apply(subtree(params, name), x.reshape(*steps, x.shape[-1]), given)
            return out.reshape(-1, core.size), states.reshape(-1, core.state_size)

        out, states = run_core("core", self.core, actor_features, sequences.state[:, :size])
        critic_out = out
        if self.critic_core is not None:
            critic_out, more = run_core("critic_core", self.critic_core, critic_features, sequences.state[:, size:])
            states = jnp.concatenate([states, more], -1)
        return *self._heads(params, out, critic_out), states

    def act(self, params: Params, observation: Array, state: Array) -> tuple[Array, Array]:
        """[N, O] and the actor's state [N, A] to distribution parameters and the state after this step."""
        assert self.core is not None
        actor_features, _ = self._features(params, observation)
        given = Sequences(state, jnp.zeros((1, len(state)), jnp.float32))
        out, after = self.core.apply(subtree(params, "core"), actor_features[None], given)
        return self.actor.apply(subtree(params, "actor"), out[0]), after[0]

    def _features(self, params: Params, observation: Array, critic: Array | None = None) -> tuple[Array, Array | None]:
        """The inputs of the recurrent layers or heads of actor and critic.

        None for a critic whose own observation is not given.
        """
        if self.bodies is not None:
            actor_features, critic_features = (
                body.apply(subtree(params, f"bodies.{i}"), observation) for i, body in enumerate(self.bodies)
            )
            return actor_features, critic_features
        if self.body is None:
            actor_features = as_numbers(observation, params)
        else:
            actor_features = self.body.apply(subtree(params, "body"), observation)
        if self.critic_size is None:
            return actor_features, actor_features
        if critic is None or self.critic_body is None:
            return actor_features, critic
        return actor_features, self.critic_body.apply(subtree(params, "critic_body"), critic)

    def _heads(self, params: Params, actor_features: Array, critic_features: Array) -> tuple[Array, Array]:
        value = self.critic.apply(subtree(params, "critic"), critic_features)
        return self.actor.apply(subtree(params, "actor"), actor_features), value[:, 0]


class Policy:
    """A network and the distribution it parameterises.

    Attributes:
        spec: of the environments.
        algorithm: by which it learns, for its policy file; without one given, PPO with default settings.
        network: the network.
        distribution: of actions.
        sampler: samples actions on the host.
        params: the current parameters; assigned after each update.
        state_size: S; 0 for a policy without recurrent layers.
        actor_state_size: A.
    """

    def __init__(
        self, spec: EnvSpec, config: NetworkConfig, seed: int = 0, *, algorithm: AlgorithmConfig | None = None
    ) -> None:
        check_critic_observation(config, spec)
        self.spec = spec
        self.algorithm = algorithm or PPOConfig()
        self.distribution = distribution_of(
            spec.action, self._log_std, config.initial_log_std, state_dependent_std=config.state_dependent_std
        )
        self.sampler: Sampler = self.distribution.sampler
        size, draws = self.distribution.num_parameters, init_streams(seed)
        if config.module is None:
            self.network: ActorCriticNetwork | UserNetwork = ActorCriticNetwork(spec, size, config)
            params = self.network.initialize(lambda name: draws(f"network.{name}"))
        else:
            self.network = UserNetwork(config.module, spec.observation_size, size)
            params = self.network.initialize(seed)
        self.state_size: int = getattr(self.network, "state_size", 0)
        self.actor_state_size: int = getattr(self.network, "actor_state_size", 0)
        params = with_prefix("network", params)
        if isinstance(self.distribution, DiagonalGaussian):
            params[LOG_STD] = np.full(size, config.initial_log_std, np.float32)
        self.params: Params = cast(Params, params)
        if isinstance(self.network, UserNetwork):
            shapes = f"[2, {size}], [2]"
            needed = f"algo=ppo needs parameters of the action distribution and a value, {shapes}"
            self.network.check_outputs(subtree(self.params, "network"), spec, shapes, needed)

    def apply(
        self,
        params: Params,
        observation: Array,
        precision: str = "float32",
        sequences: Sequences | None = None,
        critic: Array | None = None,
    ) -> tuple[Array, Array]:
        """[N, O], and [N, C] if the spec has a `critic_size`, to parameters [N, P] and value [N], always float32.

        Args:
            params: of the policy, not necessarily the current ones.
            observation: [N, O]; of images [N, C, H, W], bytes.
            precision: `float32` or `bfloat16`, of the computation.
            sequences: that the rows form; needed by a recurrent policy, and only by one.
            critic: [N, C], the critic's own.
        """
        if sequences is not None:
            return self.unroll(params, observation, sequences, critic)[:2]
        network, observation = cast_inputs(subtree(params, "network"), observation, precision)
        if critic is None:
            parameters, value = self.network.apply(network, observation)
        else:
            assert isinstance(self.network, ActorCriticNetwork)
            critic = critic if precision == "float32" else critic.astype(jnp.bfloat16)
            parameters, value = self.network.apply(network, observation, critic)
        return parameters.astype(jnp.float32), value.astype(jnp.float32)

    def unroll(
        self, params: Params, observation: Array, sequences: Sequences, critic: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """Distribution parameters, values and states of a recurrent policy; see `ActorCriticNetwork.unroll`."""
        return self.recurrent.unroll(subtree(params, "network"), observation, sequences, critic)

    @property
    def recurrent(self) -> ActorCriticNetwork:
        """The network of a recurrent policy."""
        assert isinstance(self.network, ActorCriticNetwork) and self.state_size > 0
        return self.network

    def _log_std(self) -> np.ndarray:
        return np.asarray(self.params[LOG_STD])


ActingPolicy = Policy | QPolicy | ContinuousPolicy
"""A policy of an algorithm that learns in environments."""
AnyPolicy = ActingPolicy | OfflinePolicy
"""A policy of any algorithm."""


class LinearActor:
    """Acts with numpy, for networks of linear layers on a CPU; always uses the current parameters."""

    def __init__(self, policy: ActingPolicy, chain: list[str], activation: str) -> None:
        self._policy, self._chain, self._loaded = policy, chain, policy.params
        self._actor = NumpyActor(self._layers(), activation)

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        """[..., N, O] to [..., N, P]."""
        if self._policy.params is not self._loaded:
            self._loaded = self._policy.params
            self._actor.replace(self._layers())
        return self._actor(observation)

    def _layers(self) -> list[Layer]:
        return _layers_of(self._loaded, self._chain)


class JaxActor:
    """Acts with JAX, for any network on any device; always uses the current parameters."""

    def __init__(self, policy: AnyPolicy, device: Any) -> None:
        self._policy, self._device = policy, device
        self._loaded: Params | None = None
        # A policy that was learned from a log receives raw observations.
        self._preprocess = policy.preprocess if isinstance(policy, OfflinePolicy) else None
        self._num_axes = 2 if isinstance(policy, OfflinePolicy) else 1 + len(policy.spec.observation_shape)
        self._apply: Callable[[Params, Any], Array] = jax.jit(self._parameters)

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        """[..., N, O] to [..., N, P]; one call per shard of the leading axis, so kernels have the shard's shape."""
        if observation.ndim > self._num_axes:
            return np.stack([self(one) for one in observation])
        if self._policy.params is not self._loaded:
            self._loaded = self._policy.params
            self._device_params: Params = jax.device_put(self._loaded, self._device)
        if self._preprocess is not None:
            observation = self._preprocess(observation)
        return np.asarray(self._apply(self._device_params, observation))

    def _parameters(self, params: Params, observation: Array) -> Array:
        return self._policy.apply(params, observation)[0]


class RecurrentLinearActor:
    """`LinearActor` of a recurrent policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self._loaded = policy, policy.params
        self._actor = RecurrentNumpyActor(*self._layers(), policy.recurrent.actor.activation, body=self._body())
        self.state_size = policy.actor_state_size

    def __call__(self, observation: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[..., N, O] and the actor's states [..., N, A] to [..., N, P] and the states after this step."""
        if self._policy.params is not self._loaded:
            self._loaded = self._policy.params
            self._actor.replace(*self._layers(), body=self._body())
        return self._actor(observation, state)

    def _layers(self) -> tuple[list[NumpyCell], list[Layer]]:
        network = self._policy.recurrent
        assert network.core is not None
        core = {name: np.asarray(array) for name, array in subtree(self._loaded, "network.core").items()}
        cells = [NumpyCell.of(core, layer) for layer in range(network.core.num_layers)]
        return cells, _layers_of(self._loaded, _layer_names("network.actor", network.actor))

    def _body(self) -> list[Layer]:
        body = self._policy.recurrent.body
        return _layers_of(self._loaded, _layer_names("network.body", body)) if isinstance(body, Mlp) else []


class RecurrentJaxActor:
    """`JaxActor` of a recurrent policy."""

    def __init__(self, policy: Policy, device: Any) -> None:
        self._policy, self._device = policy, device
        self._loaded: Params | None = None
        self._apply = jax.jit(lambda params, *given: policy.recurrent.act(subtree(params, "network"), *given))
        self.state_size = policy.actor_state_size

    def __call__(self, observation: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[..., N, O] and the actor's states [..., N, A] to [..., N, P] and the states after this step."""
        if observation.ndim > 1 + len(self._policy.spec.observation_shape):
            parts = [self(*part) for part in zip(observation, state, strict=True)]
            parameters, states = (np.stack(column) for column in zip(*parts, strict=True))
            return parameters, states
        if self._policy.params is not self._loaded:
            self._loaded = self._policy.params
            self._device_params: Params = jax.device_put(self._loaded, self._device)
        parameters, after = self._apply(self._device_params, observation, state)
        return np.asarray(parameters), np.asarray(after)


Actor = LinearActor | JaxActor | RecurrentLinearActor | RecurrentJaxActor


def actor_of(policy: AnyPolicy, device: Any = None) -> Actor:
    """The fastest exact actor on a local device, by default the first; without the noise of noisy layers."""
    chosen = cast(Any, jax.local_devices()[0]) if device is None else device
    if isinstance(policy, OfflinePolicy):
        return JaxActor(policy, chosen)
    if isinstance(policy, Policy) and policy.state_size > 0:
        linear = chosen.platform == "cpu" and not policy.spec.has_images
        return RecurrentLinearActor(policy) if linear else RecurrentJaxActor(policy, chosen)
    chain = _linear_chain(policy)
    if chosen.platform == "cpu" and chain and not policy.spec.has_images:
        return LinearActor(policy, *chain)
    return JaxActor(policy, chosen)


def _layer_names(prefix: str, network: Mlp) -> list[str]:
    return [f"{prefix}.layers.{i}" for i in range(len(network.shapes))]


def _layers_of(params: Params, names: list[str]) -> list[Layer]:
    return [(np.asarray(params[f"{name}.weight"]).T, np.asarray(params[f"{name}.bias"])) for name in names]


def _linear_chain(policy: ActingPolicy) -> tuple[list[str], str] | None:
    """Names of the linear layers from observation to output and their activation, if there are no other layers."""
    network = policy.network
    if isinstance(network, Mlp):
        return _layer_names("actor", network), network.activation
    if isinstance(network, QNetwork):
        chain = network.chain
    elif isinstance(network, ActorCriticNetwork):
        names = _layer_names("actor", network.actor)
        if isinstance(network.body, Mlp):
            names = _layer_names("body", network.body) + names
        chain = names, network.actor.activation
    else:
        return None
    return None if chain is None else ([f"network.{name}" for name in chain[0]], chain[1])
