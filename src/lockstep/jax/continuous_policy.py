"""Policies for bounded continuous actions, with their critics: the networks of SAC and TD3.

Parameters have the names and layouts of torch's.

Shapes: N rows, O observation, D dimensions of an action, I inputs of a layer, H its outputs, C critics, P parameters of
the action distribution.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lockstep.algorithms.sac import SACConfig
from lockstep.algorithms.td3 import TD3Config
from lockstep.config.network import NetworkConfig
from lockstep.envs.spec import EnvSpec
from lockstep.experience.sampling import NoisyDeterministic
from lockstep.jax.distributions import SquashedGaussian
from lockstep.jax.encoders import ACTIVATIONS, InitStreams, Mlp, cast_inputs, init_streams, orthogonal, uniform_layer
from lockstep.jax.flat import Params, subtree, with_prefix
from lockstep.jax.products import batched_product, product

LOG_ALPHA = "temperature.log_alpha"
"""Name of the logarithm of a learned temperature among a policy's parameters."""
_NORM_EPS = 1e-5


class Critics:
    """C value networks Q(s, a) of the same shape, computed together: weights [C, H, I], biases [C, H].

    Between two linear layers: dropout, layer normalization, activation, as in DroQ (Hiraoka et al., 2022,
    arXiv:2110.02034); the first two only if they are switched on.

    Args:
        num_critics: C.
        sizes: inputs of the first layer, units of each hidden layer, and 1.
        activation: between layers.
        layer_norm: normalize the units of each hidden layer.
        dropout: the part of the units of each hidden layer that a mask removes.
        orthogonal: orthogonal initial weights instead of uniform ones.
    """

    def __init__(
        self,
        num_critics: int,
        sizes: Sequence[int],
        activation: str,
        *,
        layer_norm: bool = False,
        dropout: float = 0.0,
        orthogonal: bool = False,
    ) -> None:
        self.shapes = [(num_critics, b, a) for a, b in pairwise(sizes)]
        self.activation = activation
        self.layer_norm = layer_norm
        self.dropout = dropout
        self._orthogonal = orthogonal

    def initialize(self, draws: InitStreams) -> dict[str, np.ndarray]:
        """Weights and biases uniform within 1 / sqrt(I); scales of the normalization 1 and shifts 0.

        With `orthogonal`: weights of gain sqrt(2), 1 in the last layer, and biases 0.
        """
        params: dict[str, np.ndarray] = {}
        for i, shape in enumerate(self.shapes):
            if self._orthogonal:
                gain = 1.0 if i == len(self.shapes) - 1 else math.sqrt(2)
                draw = draws(f"layers.{i}.weight")
                params[f"layers.{i}.weight"] = np.stack([orthogonal(shape[1:], gain, draw) for _ in range(shape[0])])
                params[f"layers.{i}.bias"] = np.zeros(shape[:-1], np.float32)
                continue
            bound = 1.0 / math.sqrt(shape[-1])
            for name, size in ((f"layers.{i}.weight", shape), (f"layers.{i}.bias", shape[:-1])):
                params[name] = draws(name).uniform(-bound, bound, size).astype(np.float32)
        for i, shape in enumerate(self.shapes[:-1] if self.layer_norm else []):
            params[f"norms.{i}.weight"] = np.ones(shape[:-1], np.float32)
            params[f"norms.{i}.bias"] = np.zeros(shape[:-1], np.float32)
        return params

    def apply(self, params: Params, observation: Array, action: Array, key: Array | None = None) -> Array:
        """[N, O] and actions scaled to [-1, 1], [N, D], to Q [C, N]; `key` draws dropout masks, None: no dropout."""
        x, last = jnp.concatenate([observation, action], -1), len(self.shapes) - 1
        for i in range(len(self.shapes)):
            weight, bias = params[f"layers.{i}.weight"], params[f"layers.{i}.bias"]
            x = (_first_product(x, weight) if i == 0 else batched_product(x, weight)) + bias[:, None]
            if i == last:
                break
            if key is not None:
                kept = jax.random.bernoulli(jax.random.fold_in(key, i), 1.0 - self.dropout, x.shape)
                x = jnp.where(kept, x * (1.0 / (1.0 - self.dropout)), 0.0)
            if self.layer_norm:
                x = _layer_norm(x) * params[f"norms.{i}.weight"][:, None] + params[f"norms.{i}.bias"][:, None]
            x = ACTIVATIONS[self.activation](x)
        return x[..., 0]


def _first_product(x: Array, weight: Array) -> Array:
    """Rows [N, I], the same for all critics, times weights [C, H, I]: [C, N, H], as one product."""
    count, size, inputs = weight.shape
    return product(x, weight.reshape(count * size, inputs)).reshape(-1, count, size).swapaxes(0, 1)


def _layer_norm(x: Array) -> Array:
    """Layer normalization (Ba et al., 2016, arXiv:1607.06450) of [C, N, H] without scale and shift."""
    wide = x.astype(jnp.float32)
    centered = wide - wide.mean(-1, keepdims=True)
    scaled = centered * lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + _NORM_EPS)
    return scaled.astype(x.dtype)


class ContinuousPolicy:
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
        network: the actor, by the name that it has in every policy.
        distribution: of SAC's actions; None: TD3.
        sampler: samples actions on the host.
        params: the current parameters; assigned after each update.
    """

    def __init__(self, spec: EnvSpec, network: NetworkConfig, algorithm: SACConfig | TD3Config, seed: int = 0) -> None:
        self.spec = spec
        self.algorithm = algorithm
        self.distribution = SquashedGaussian(spec.action) if isinstance(algorithm, SACConfig) else None
        if self.distribution is not None:
            self.sampler = self.distribution.sampler
        else:
            assert isinstance(algorithm, TD3Config)
            self.sampler = NoisyDeterministic(spec.action, algorithm.exploration_noise)
        self.critics = Critics(
            algorithm.num_critics,
            (spec.observation_size + spec.action.width, *network.value_hidden, 1),
            network.activation,
            layer_norm=algorithm.layer_norm,
            dropout=algorithm.dropout,
            orthogonal=network.initialization == "orthogonal",
        )
        sizes = (spec.observation_size, *network.hidden, self.sampler.num_parameters)
        self.actor = Mlp(sizes, network.activation, last_gain=1.0)
        self.network = self.actor
        draws = init_streams(seed)

        def of_actor(name: str) -> np.random.Generator:
            return draws(f"actor.{name}")

        actor: dict[str, np.ndarray] = {}
        if network.initialization == "orthogonal":
            actor = self.actor.initialize(of_actor)
        else:
            for i, shape in enumerate(self.actor.shapes):
                actor |= uniform_layer(f"layers.{i}", shape, of_actor)
        params = with_prefix("actor", actor)
        params |= with_prefix("critics", self.critics.initialize(lambda name: draws(f"critics.{name}")))
        if isinstance(algorithm, SACConfig) and algorithm.alpha is None:
            params[LOG_ALPHA] = np.array(math.log(algorithm.initial_alpha), np.float32)
        self.params: Params = cast(Params, params)

    def apply(self, params: Params, observation: Array) -> tuple[Array, Array]:
        """[N, O] to distribution parameters [N, P], and NaN [N] in place of a value, which needs an action."""
        parameters = self.parameters(params, observation)
        return parameters, jnp.full_like(parameters[:, 0], jnp.nan)

    def parameters(self, params: Params, observation: Array, precision: str = "float32") -> Array:
        """[N, O] to distribution parameters [N, P], always float32.

        Args:
            params: of the policy, not necessarily the current ones; those of the actor suffice.
            observation: [N, O].
            precision: `float32` or `bfloat16`, of the computation.
        """
        actor, observation = cast_inputs(subtree(params, "actor"), observation, precision)
        return self.actor.apply(actor, observation).astype(jnp.float32)

    def act(self, params: Params, observation: Array, noise: Array) -> Array:
        """The environment's actions [N, D] for [N, O], as the sampler's, from standard normal noise [N, D]."""
        parameters = self.parameters(params, observation)
        if self.distribution is not None:
            scaled = self.distribution.scaled_action_and_log_prob(parameters, noise)[0]
        else:
            assert isinstance(self.sampler, NoisyDeterministic)
            scaled = jnp.clip(jnp.tanh(parameters) + self.sampler.std * noise, -1.0, 1.0)
        return self.unscaled(scaled)

    def unscaled(self, action: Array) -> Array:
        """The environment's actions [N, D], from those in [-1, 1]."""
        return jnp.asarray(self.sampler.center[None]) + self.sampler.half_range[None] * action

    def q(
        self, params: Params, observation: Array, action: Array, key: Array | None = None, precision: str = "float32"
    ) -> Array:
        """[N, O] and actions scaled to [-1, 1], [N, D], to Q [C, N], always float32.

        Args:
            params: of critics, not necessarily the current ones; named without the prefix `critics`.
            observation: [N, O].
            action: [N, D].
            key: draws dropout masks; None: no dropout.
            precision: `float32` or `bfloat16`, of the computation.
        """
        critics, observation = cast_inputs(params, observation, precision)
        return self.critics.apply(critics, observation, action.astype(observation.dtype), key).astype(jnp.float32)

    def scaled(self, action: Array) -> Array:
        """Actions [N, D] of the environment, scaled to [-1, 1]."""
        return (action - self.sampler.center[None]) / self.sampler.half_range[None]
