"""Q-networks: plain, dueling, distributional, with noisy layers, and combinations.

Shapes: N rows, O observation, F features, A actions, Z points of a return's distribution (atoms of C51 or quantiles of
QR-DQN), B environments of a shard.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lockstep.algorithms.dqn import DQNConfig
from lockstep.config.network import NetworkConfig
from lockstep.envs.spec import EnvSpec
from lockstep.experience.exploration import EpsilonGreedy, NoisyActor
from lockstep.jax.encoders import (
    ACTIVATIONS,
    InitStreams,
    Mlp,
    cast_inputs,
    init_streams,
    linear,
    make_encoder,
    uniform_layer,
)
from lockstep.jax.flat import Params, subtree, with_prefix
from lockstep.jax.user_network import UserNetwork
from lockstep.session.task_checks import check_custom_heads

Noise = Sequence[tuple[Array, Array]]
"""Of each noisy layer f(e_in) and f(e_out): [in] and [out], or those of every row, [N, in] and [N, out]."""


class Head:
    """Linear layers behind an encoder, with an activation between them; noisy ones if `noisy_std` is given.

    A noisy layer perturbs its weights by learned standard deviations (Fortunato et al., 2018, arXiv:1706.10295, eq. 9
    to 11):

    y = (w + s_w * (f(e_out) f(e_in)^T)) x + b + s_b * f(e_out),  f(e) = sign(e) sqrt|e|,  e standard normal

    Attributes:
        noise_sizes: input and output size of each noisy layer.
    """

    def __init__(self, sizes: tuple[int, ...], activation: str, noisy_std: float | None) -> None:
        self.shapes = [(b, a) for a, b in pairwise(sizes)]
        self.activation, self._std = activation, noisy_std
        self.noise_sizes = [] if noisy_std is None else list(pairwise(sizes))

    def initialize(self, draws: InitStreams) -> dict[str, np.ndarray]:
        """Weights and biases uniform within 1 / sqrt(in), standard deviations noisy_std / sqrt(in) (section 3.2)."""
        params: dict[str, np.ndarray] = {}
        for i, shape in enumerate(self.shapes):
            layer = uniform_layer(f"layers.{i}", shape, draws)
            if self._std is not None:
                deviation = np.float32(self._std / math.sqrt(shape[1]))
                layer |= {f"{name}_std": np.full_like(value, deviation) for name, value in layer.items()}
            params |= layer
        return params

    def apply(self, params: Params, x: Array, noise: Noise = ()) -> Array:
        """[N, first size] to [N, last size]; without `noise` noisy layers are y = w x + b."""
        for i in range(len(self.shapes)):
            x = x if i == 0 else ACTIVATIONS[self.activation](x)
            y = linear(params, f"layers.{i}", x)
            if noise:
                # s_w * (out in^T) x = out * (s_w (in * x)) needs no noise matrix and allows noise per row.
                before, after = (numbers.astype(x.dtype) for numbers in noise[i])
                weight, bias = params[f"layers.{i}.weight_std"], params[f"layers.{i}.bias_std"]
                y = y + _of_rows(after, y) * ((x * _of_rows(before, x)) @ weight.T + bias[None])
            x = y
        return x


class QNetwork:
    """An encoder and its heads: one, or two streams.

    The last hidden layer is part of the heads, so that each stream has one (Wang et al., 2016, arXiv:1511.06581) and it
    is noisy if the heads are.

    Attributes:
        chain: names of the linear layers from observation to Q and their activation; None for other architectures.
        noise_sizes: input and output size of each noisy layer.
    """

    def __init__(self, spec: EnvSpec, config: NetworkConfig, algorithm: DQNConfig, points: int) -> None:
        self.num_actions, self.points = spec.action.sizes[0], points
        self.encoder = make_encoder(spec, config, last=False)
        vectors = isinstance(self.encoder, Mlp)
        hidden = config.hidden[-1:] if vectors else (config.features,)
        activation = config.activation if vectors else "relu"
        sizes = (self.encoder.num_features, *hidden)
        std = algorithm.noisy_std if algorithm.noisy else None
        self.advantage = Head((*sizes, self.num_actions * points), activation, std)
        self.value = Head((*sizes, points), activation, std) if algorithm.dueling else None
        self.noise_sizes = [*self.advantage.noise_sizes, *(self.value.noise_sizes if self.value else ())]
        plain = not algorithm.dueling and not algorithm.noisy and algorithm.value_distribution == "none"
        self.chain: tuple[list[str], str] | None = None
        if isinstance(self.encoder, Mlp) and plain:
            names = [f"encoder.layers.{i}" for i in range(len(self.encoder.shapes))]
            names += [f"advantage.layers.{i}" for i in range(len(self.advantage.shapes))]
            self.chain = names, activation

    def initialize(self, draws: InitStreams) -> dict[str, np.ndarray]:
        """Draw initial parameters."""
        params: dict[str, np.ndarray] = {}
        for name, network in (("encoder", self.encoder), ("advantage", self.advantage), ("value", self.value)):
            if network is not None:
                params |= with_prefix(name, network.initialize(lambda key, name=name: draws(f"{name}.{key}")))
        return params

    def apply(self, params: Params, observation: Array, noise: Noise = ()) -> Array:
        """[N, O] to [N, A Z]: Q, or V + A - mean A over the actions (Wang et al., 2016, eq. 9)."""
        features = self.encoder.apply(subtree(params, "encoder"), observation)
        layers = len(self.advantage.shapes)
        advantage = self.advantage.apply(subtree(params, "advantage"), features, noise[:layers])
        if self.value is None:
            return advantage
        advantage = advantage.reshape(-1, self.num_actions, self.points)
        value = self.value.apply(subtree(params, "value"), features, noise[layers:]).reshape(-1, 1, self.points)
        return (value + advantage - advantage.mean(1, keepdims=True)).reshape(advantage.shape[0], -1)


class QPolicy:
    """A Q-network and epsilon-greedy action selection.

    Args:
        spec: of the environments.
        network: of the encoder. `network.module` is constructed as `YourClass(observation_size, A Z)`; its `apply`
            returns [N, A Z] for observations [N, O].
        algorithm: of the heads.
        seed: of the parameters.

    Attributes:
        spec: of the environments.
        algorithm: of the heads.
        network: the network.
        distribution: epsilon-greedy with the final epsilon of training; `sampler` is the same.
        params: the current parameters; assigned after each update.
        points: Z.
        support: z of C51 [Z], derived from the config.
        num_noise: random numbers per noise draw; 0 without noisy layers.
    """

    def __init__(self, spec: EnvSpec, network: NetworkConfig, algorithm: DQNConfig, seed: int = 0) -> None:
        self.spec, self.algorithm = spec, algorithm
        self.distribution = self.sampler = EpsilonGreedy(spec.action, algorithm.epsilon_range[1])
        self.points = algorithm.num_points
        self.support = np.linspace(algorithm.v_min, algorithm.v_max, algorithm.num_atoms, dtype=np.float32)
        if network.module is None:
            self.network: QNetwork | UserNetwork = QNetwork(spec, network, algorithm, self.points)
            draws = init_streams(seed)
            params = self.network.initialize(lambda name: draws(f"network.{name}"))
        else:
            check_custom_heads(network.module, algorithm)
            self.network = UserNetwork(network.module, spec.observation_size, spec.action.sizes[0] * self.points)
            params = self.network.initialize(seed)
        self.params: Params = cast(Params, with_prefix("network", params))
        if isinstance(self.network, UserNetwork):
            shape = f"[2, {spec.action.sizes[0] * self.points}]"
            needed = f"algo=dqn needs values of actions, an array {shape}"
            self.network.check_outputs(subtree(self.params, "network"), spec, shape, needed)
        sizes = self.network.noise_sizes if isinstance(self.network, QNetwork) else []
        self._noise_sizes = [size for layer in sizes for size in layer]
        self.num_noise = sum(self._noise_sizes)

    def apply(self, params: Params, observation: Array) -> tuple[Array, Array]:
        """[N, O] to Q [N, A] and the largest Q [N], without noise."""
        q = self.expected(self.outputs(params, observation))
        return q, q.max(-1)

    def outputs(
        self, params: Params, observation: Array, noise: Array | None = None, precision: str = "float32"
    ) -> Array:
        """[N, O] to Q [N, A], or to the return's distribution [N, A, Z]: logits of its atoms, or its quantiles.

        Args:
            params: of the policy, not necessarily the current ones.
            observation: [N, O]; of images [N, C, H, W], bytes.
            noise: standard normal numbers [num_noise], or those of each row [N, num_noise]; None: no noise.
            precision: `float32` or `bfloat16`, of the computation and of the outputs.
        """
        network, observation = cast_inputs(subtree(params, "network"), observation, precision)
        if isinstance(self.network, QNetwork):
            outputs = self.network.apply(network, observation, self._parts(noise))
        else:
            outputs = cast(Array, self.network.apply(network, observation))
        distributional = self.algorithm.value_distribution != "none"
        return outputs.reshape(outputs.shape[0], -1, self.points) if distributional else outputs

    def probability(self, logits: Array) -> Array:
        """Probabilities of C51's atoms from logits [..., Z]; float32."""
        return jax.nn.softmax(logits.astype(jnp.float32), -1)

    def expected(self, outputs: Array) -> Array:
        """Q [N, A] from `outputs`, float32: sum_i p_i z_i of atoms, or the mean of quantiles."""
        outputs = outputs.astype(jnp.float32)
        if self.algorithm.value_distribution == "categorical":
            return (self.probability(outputs) * jnp.asarray(self.support)[None, None]).sum(-1)
        return outputs if outputs.ndim == 2 else outputs.mean(-1)

    def draw_noise(self, generator: np.random.Generator) -> np.ndarray | None:
        """Noise for `outputs` [num_noise], shared by all rows; None, without a draw, if there are no noisy layers."""
        return generator.standard_normal(self.num_noise, np.float32) if self.num_noise else None

    def _parts(self, numbers: Array | None) -> Noise:
        if numbers is None or not self.num_noise:
            return ()
        scaled = jnp.sign(numbers) * jnp.sqrt(jnp.abs(numbers))
        parts = lax.split(scaled, self._noise_sizes, scaled.ndim - 1)
        return list(zip(parts[::2], parts[1::2], strict=True))


def noisy_actor(policy: QPolicy, seed: int, envs: Sequence[range], device: Any = None) -> NoisyActor:
    """The actor of a policy with noisy layers, always with the current parameters.

    Args:
        policy: the policy.
        seed: of the run.
        envs: the global indices of the environments of each local shard.
        device: of the computation; default: the first local one.
    """
    device = jax.local_devices()[0] if device is None else device
    apply = jax.jit(lambda params, observation, noise: policy.expected(policy.outputs(params, observation, noise)))
    loaded: Params | None = None
    on_device: Any = None

    def q_values(observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        nonlocal loaded, on_device
        if policy.params is not loaded:
            loaded = policy.params
            on_device = jax.device_put(loaded, device)
        return np.asarray(apply(on_device, observation, noise))

    return NoisyActor(q_values, policy.num_noise, seed, envs)


def _of_rows(numbers: Array, like: Array) -> Array:
    """Numbers [F], the same for all rows, or of each row [N, F], as [N, F]."""
    return jnp.broadcast_to(numbers if numbers.ndim == 2 else numbers[None], like.shape)
