"""A policy learned from a log of named actions: a network that scores them, and the policy that follows.

Shapes: N rows, F raw features of a state, S numbers after preprocessing, A actions, C outcomes.
"""

from typing import cast

import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.experience.exploration import EpsilonGreedy
from lockstep.experience.sampling import Categorical
from lockstep.jax.encoders import cast_inputs, init_streams
from lockstep.jax.flat import Params, subtree, with_prefix
from lockstep.jax.scoring import choices
from lockstep.jax.scoring.networks import OutcomeNetwork, ScoreNetwork
from lockstep.session.offline.policy_spec import OfflinePolicySpec

LEFT_OUT = -1e9
"""The score of an action that must not be chosen: it is impossible, or BCQ leaves it out."""


class ScoringPolicy:
    """A network that scores named actions, and models of their outcomes.

    Args:
        policy_spec: everything but the parameters.
        seed: of the initial parameters.

    Attributes:
        policy_spec: everything but the parameters.
        info: of the training data.
        config: the settings of the algorithm.
        scores_name: name of the network of scores among the parameters.
        behaviour_name: name of BCQ's model of the log; None without `bcq_threshold`.
        has_models: whether there are models of the reward, of metrics and of the policy's value.
        params: the current parameters; assigned after each update.
    """

    def __init__(self, policy_spec: OfflinePolicySpec, seed: int = 0) -> None:
        info, config = policy_spec.info, policy_spec.algorithm
        assert isinstance(config, OfflineDQNConfig)
        self.policy_spec = policy_spec
        self.spec = policy_spec.spec
        self.info = info
        self.config = config
        size = info.state_size, len(info.actions)
        self._scores = ScoreNetwork(*size, policy_spec.network, dueling=config.dueling)
        self._behaviour = ScoreNetwork(*size, policy_spec.network)
        self._outcomes = OutcomeNetwork(*size, 1 + len(info.metrics), policy_spec.network)
        constrained = config.bcq_threshold is not None
        self.scores_name = "network.scores" if constrained else "network"
        self.behaviour_name = "network.behaviour" if constrained else None
        self.has_models = config.estimate
        networks: dict[str, ScoreNetwork | OutcomeNetwork] = {self.scores_name: self._scores}
        if self.behaviour_name is not None:
            networks[self.behaviour_name] = self._behaviour
        if self.has_models:
            networks |= {"heads.reward": self._outcomes, "heads.value": self._outcomes}
        draws = init_streams(seed)
        params: dict[str, np.ndarray] = {}
        for name, network in networks.items():
            params |= with_prefix(name, network.initialize(lambda key, name=name: draws(f"{name}.{key}")))
        self.params: Params = cast(Params, params)

    @property
    def sampler(self) -> Categorical | EpsilonGreedy:
        """Chooses a simulator's actions from the result of `apply`."""
        assert self.spec is not None
        return Categorical(self.spec.action) if self.config.policy == "softmax" else EpsilonGreedy(self.spec.action)

    def preprocess(self, observation: np.ndarray) -> np.ndarray:
        """Normalize a simulator's observations [N, F]; [N, S]."""
        return self.policy_spec.state.normalize(np.asarray(observation, np.float64))

    def apply(self, params: Params, state: Array) -> tuple[Array, Array]:
        """Preprocessed states [N, S] to the scores of a simulator's actions over the temperature, and their maximum."""
        # Every action is possible in a simulator.
        possible = jnp.ones((len(state), len(self.info.actions)), jnp.float32)
        scores = self.scores(params, state, possible)[:, self._actions_of_simulator()] / self.config.temperature
        return scores, scores.max(-1)

    def scores(self, params: Params, state: Array, possible: Array) -> Array:
        """Scores of actions [N, A] in states [N, S]; `LEFT_OUT` for actions that must not be chosen."""
        return jnp.where(self.allowed(params, state, possible), self.q(params, state), LEFT_OUT)

    def allowed(self, params: Params, state: Array, possible: Array, precision: str = "float32") -> Array:
        """Whether an action is possible and, with `bcq_threshold`, the log takes it often enough; bool [N, A]."""
        if self.behaviour_name is None:
            return possible != 0
        assert self.config.bcq_threshold is not None
        return choices.likely(self.behaviour(params, state, precision), possible, self.config.bcq_threshold)

    def q(self, params: Params, state: Array, precision: str = "float32") -> Array:
        """Q of all actions [N, A] in states [N, S], float32."""
        return self._run(self._scores, self.scores_name, params, state, precision)

    def behaviour(self, params: Params, state: Array, precision: str = "float32") -> Array:
        """Logits [N, A] of the actions that the log takes in states [N, S], float32."""
        assert self.behaviour_name is not None
        return self._run(self._behaviour, self.behaviour_name, params, state, precision)

    def outcomes(self, params: Params, head: str, state: Array, precision: str = "float32") -> Array:
        """Outcomes of all actions [N, A, C] in states [N, S] by the model `head`, `reward` or `value`; float32."""
        return self._run(self._outcomes, f"heads.{head}", params, state, precision)

    def _run(
        self, network: ScoreNetwork | OutcomeNetwork, name: str, params: Params, state: Array, precision: str
    ) -> Array:
        return network.apply(*cast_inputs(subtree(params, name), state, precision)).astype(jnp.float32)

    def _actions_of_simulator(self) -> np.ndarray:
        """For each action of the simulator the index of its score [A]."""
        assert self.spec is not None
        names, count = self.info.actions, self.spec.action.sizes[0]
        numbers = [str(i) for i in range(count)]
        return np.array([names.index(name) for name in numbers] if set(numbers) <= set(names) else range(count))
