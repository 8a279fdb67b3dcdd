"""A policy of continuous actions learned from a log by IQL: a Gaussian actor, critics and the value of a state.

Actions are scaled to [-1, 1] by the bounds of the log.

Shapes: N rows, F raw features of a state, S numbers after preprocessing, D dimensions of an action, C critics.
"""

import math
from typing import cast

import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.algorithms.offline_continuous import IQLConfig
from lockstep.experience.sampling import ClippedGaussian
from lockstep.jax.continuous_policy import Critics
from lockstep.jax.encoders import Mlp, cast_inputs, init_streams
from lockstep.jax.flat import Params, subtree, with_prefix
from lockstep.jax.scoring.networks import ActionOutcomeNetwork
from lockstep.session.offline.policy_spec import OfflinePolicySpec

CRITICS = "network.critics"
"""Name of the critics among the parameters."""
LOG_STD = "network.actor.log_std"
_ACTOR = "network.actor.body"
_VALUE = "network.value"
LOG_STD_RANGE = (-5.0, 2.0)
"""Bounds of the log standard deviations."""
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class ActorPolicy:
    """Normal distributions with mean tanh(f(s)) and a standard deviation for each dimension, clipped to the bounds.

    Args:
        policy_spec: everything but the parameters.
        seed: of the initial parameters.

    Attributes:
        policy_spec: everything but the parameters.
        info: of the training data.
        config: the settings of the algorithm.
        has_models: whether there are models of the reward, of metrics and of the policy's value.
        deterministic: whether it always takes the same action in a state, and so has no density.
        sampler: chooses a simulator's actions from the result of `apply`.
        params: the current parameters; assigned after each update.
    """

    def __init__(self, policy_spec: OfflinePolicySpec, seed: int = 0) -> None:
        info, config, network = policy_spec.info, policy_spec.algorithm, policy_spec.network
        assert isinstance(config, IQLConfig)
        self.policy_spec = policy_spec
        self.spec = policy_spec.spec
        self.info = info
        self.config = config
        self.has_models = config.estimate
        self.deterministic = config.policy == "greedy"
        self.sampler = ClippedGaussian(policy_spec.action_spec, deterministic=self.deterministic)
        size, activation = (info.state_size, info.action_size), network.activation
        self._actor = Mlp((size[0], *network.hidden, size[1]), activation, last_gain=0.01)
        self._value = Mlp((size[0], *network.hidden, 1), activation, last_gain=1.0)
        self._outcomes = ActionOutcomeNetwork(*size, 1 + len(info.metrics), network)
        self._critics = Critics(config.num_critics, (sum(size), *network.hidden, 1), activation, orthogonal=True)
        networks: dict[str, Mlp | ActionOutcomeNetwork | Critics] = {
            CRITICS: self._critics,
            _ACTOR: self._actor,
            _VALUE: self._value,
        }
        if self.has_models:
            networks |= {"heads.reward": self._outcomes, "heads.value": self._outcomes}
        draws = init_streams(seed)
        params = {LOG_STD: np.zeros(size[1], np.float32)}
        for name, part in networks.items():
            params |= with_prefix(name, part.initialize(lambda key, name=name: draws(f"{name}.{key}")))
        self.params: Params = cast(Params, params)

    def preprocess(self, observation: np.ndarray) -> np.ndarray:
        """Normalize a simulator's observations [N, F]; [N, S]."""
        return self.policy_spec.state.normalize(np.asarray(observation, np.float64))

    def apply(self, params: Params, state: Array) -> tuple[Array, Array]:
        """Preprocessed states [N, S] to means and log standard deviations [N, 2 D]; 0 [N] stands for a value."""
        parameters = jnp.concatenate(self.mean_and_log_std(params, state), -1)
        return parameters, jnp.zeros_like(parameters[:, 0])

    def mean_and_log_std(self, params: Params, state: Array, precision: str = "float32") -> tuple[Array, Array]:
        """Means and log standard deviations of the actions in states [N, S], [N, D] each, float32."""
        inputs = cast_inputs(subtree(params, _ACTOR), state, precision)
        mean = jnp.tanh(self._actor.apply(*inputs)).astype(jnp.float32)
        log_std = jnp.clip(params[LOG_STD], *LOG_STD_RANGE)
        return mean, jnp.broadcast_to(log_std[None], mean.shape)

    def act(self, params: Params, state: Array, noise: Array) -> Array:
        """Actions [N, D] in states [N, S]: means, or, if sampled, mean + standard deviation * noise, clipped."""
        mean, log_std = self.mean_and_log_std(params, state)
        return mean if self.deterministic else jnp.clip(mean + jnp.exp(log_std) * noise, -1.0, 1.0)

    def log_prob(self, params: Params, state: Array, action: Array, precision: str = "float32") -> Array:
        """The log-density of actions [N, D] by the normal distributions, before they are clipped [N]; for learning."""
        mean, log_std = self.mean_and_log_std(params, state, precision)
        scaled = (action - mean) * jnp.exp(-log_std)
        return -(0.5 * jnp.square(scaled) + log_std + _HALF_LOG_TAU).sum(-1)

    def q(self, params: Params, state: Array, action: Array, precision: str = "float32") -> Array:
        """Q of actions [N, D] in states [N, S] by each critic [C, N], float32."""
        critics, state = cast_inputs(subtree(params, CRITICS), state, precision)
        return self._critics.apply(critics, state, action.astype(state.dtype)).astype(jnp.float32)

    def value(self, params: Params, state: Array, precision: str = "float32") -> Array:
        """V of states [N, S]; [N], float32."""
        inputs = cast_inputs(subtree(params, _VALUE), state, precision)
        return self._value.apply(*inputs)[:, 0].astype(jnp.float32)

    def outcomes(self, params: Params, head: str, state: Array, action: Array, precision: str = "float32") -> Array:
        """Outcomes of actions [N, D] in states [N, S] by the model `head`, `reward` or `value`; float32."""
        weights, state = cast_inputs(subtree(params, f"heads.{head}"), state, precision)
        return self._outcomes.apply(weights, state, action.astype(state.dtype)).astype(jnp.float32)
