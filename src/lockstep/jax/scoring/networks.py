"""Networks for logged data: scores and outcomes of named actions, and outcomes of continuous actions.

Parameters have the names and layouts of torch's.

Shapes: N rows, S numbers of a normalized state, A actions, D dimensions of a continuous action, C outcomes.
"""

import math

import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.config.network import ScoreNetworkConfig
from lockstep.jax.encoders import InitStreams, Mlp
from lockstep.jax.flat import Params, subtree, with_prefix
from lockstep.jax.q_networks import Head


class ScoreNetwork:
    """Linear layers from a state to a score for each action; with `dueling` in two streams, each with a last layer.

    Args:
        state_size: S.
        num_actions: A, the number of outputs.
        config: the layers.
        dueling: Q(s, a) = V(s) + A(s, a) - mean_b A(s, b) (Wang et al., 2016, arXiv:1511.06581, eq. 9).
    """

    def __init__(self, state_size: int, num_actions: int, config: ScoreNetworkConfig, *, dueling: bool = False) -> None:
        sizes = (state_size, *config.hidden[:-1])
        self.body = Mlp(sizes, config.activation, last_gain=math.sqrt(2), activate_last=True)
        sizes = (self.body.num_features, *config.hidden[-1:])
        self.advantage = Head((*sizes, num_actions), config.activation, None)
        self.value = Head((*sizes, 1), config.activation, None) if dueling else None

    def initialize(self, draws: InitStreams) -> dict[str, np.ndarray]:
        """Draw initial parameters."""
        params: dict[str, np.ndarray] = {}
        for name, part in (("body", self.body), ("advantage", self.advantage), ("value", self.value)):
            if part is not None:
                params |= with_prefix(name, part.initialize(lambda key, name=name: draws(f"{name}.{key}")))
        return params

    def apply(self, params: Params, state: Array) -> Array:
        """[N, S] to [N, A]."""
        features = self.body.apply(subtree(params, "body"), state)
        advantage = self.advantage.apply(subtree(params, "advantage"), features)
        if self.value is None:
            return advantage
        value = self.value.apply(subtree(params, "value"), features)
        return value + advantage - advantage.mean(1, keepdims=True)


class OutcomeNetwork:
    """Several outcomes of each named action: [N, S] to [N, A, C]."""

    def __init__(self, state_size: int, num_actions: int, outcomes: int, config: ScoreNetworkConfig) -> None:
        self.network = ScoreNetwork(state_size, num_actions * outcomes, config)
        self._shape = num_actions, outcomes

    def initialize(self, draws: InitStreams) -> dict[str, np.ndarray]:
        """Draw initial parameters."""
        return with_prefix("network", self.network.initialize(lambda key: draws(f"network.{key}")))

    def apply(self, params: Params, state: Array) -> Array:
        """[N, S] to [N, A, C]."""
        return self.network.apply(subtree(params, "network"), state).reshape(-1, *self._shape)


class ActionOutcomeNetwork:
    """Several outcomes of a continuous action: [N, S] and [N, D] to [N, C]."""

    def __init__(self, state_size: int, action_size: int, outcomes: int, config: ScoreNetworkConfig) -> None:
        self.body = Mlp((state_size + action_size, *config.hidden, outcomes), config.activation, last_gain=1.0)

    def initialize(self, draws: InitStreams) -> dict[str, np.ndarray]:
        """Draw initial parameters."""
        return with_prefix("body", self.body.initialize(lambda key: draws(f"body.{key}")))

    def apply(self, params: Params, state: Array, action: Array) -> Array:
        """[N, S] and [N, D] to [N, C]."""
        return self.body.apply(subtree(params, "body"), jnp.concatenate([state, action], -1))
