"""A policy learned from a log: a network that scores actions, and the preprocessing of its raw features.

Shapes: N rows, F raw features of a state, S numbers after preprocessing, A named actions, m candidates, K numbers of a
candidate, M metrics.
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.data.dataset import DatasetInfo
from lockstep.experience.exploration import EpsilonGreedy
from lockstep.session.offline.policy_spec import OfflinePolicySpec
from lockstep.torch.distributions import Categorical
from lockstep.torch.q_networks import initialize
from lockstep.torch.scoring.candidates import CandidateNetwork
from lockstep.torch.scoring.choices import ActionMask
from lockstep.torch.scoring.networks import LEFT_OUT, ConstrainedNetwork, OutcomeHeads, OutcomeNetwork, score_network
from lockstep.torch.scoring.preprocess import Preprocessor


class ScoringPolicy(nn.Module):
    """A network that scores actions, and the policy that follows from the scores.

    Args:
        policy_spec: everything but the parameters.
        seed: of the initial parameters.

    Attributes:
        policy_spec: everything but the parameters.
        config: the settings of the algorithm.
        state: preprocesses raw features of states.
        action: preprocesses raw features of candidates; None for named actions.
        network: `ScoreNetwork` or `ConstrainedNetwork` for named actions, `CandidateNetwork` for candidates.
        heads: models of the reward, of metrics and of the policy's value, for estimates; None without them.
        distribution: chooses a simulator's actions from the result of `forward`.
    """

    def __init__(self, policy_spec: OfflinePolicySpec, seed: int = 0) -> None:
        super().__init__()
        info, config = policy_spec.info, policy_spec.algorithm
        assert isinstance(config, OfflineDQNConfig | CloningConfig)
        self.config = config
        self.policy_spec, self.spec = policy_spec, policy_spec.spec
        self.state = Preprocessor(policy_spec.state)
        self.action = None if policy_spec.action is None else Preprocessor(policy_spec.action)
        dueling = isinstance(config, OfflineDQNConfig) and config.dueling
        outcomes = 1 + len(info.metrics)
        if self.action is None:
            size = (info.state_size, len(info.actions))
            self.network = score_network(*size, policy_spec.network, config)
            outcome_network = partial(OutcomeNetwork, *size, outcomes, policy_spec.network)
        else:
            size = (info.state_size, info.action_size)
            self.network = CandidateNetwork(*size, policy_spec.network, dueling=dueling)
            outcome_network = partial(CandidateNetwork, *size, policy_spec.network, outputs=outcomes)
        self.heads = OutcomeHeads(outcome_network) if config.estimate else None
        initialize(self, seed)
        if self.spec is not None:
            softmax = config.policy == "softmax"
            action = self.spec.action
            self.distribution = Categorical(action) if softmax else EpsilonGreedy(action, 0.0)
            self._order = self._actions_of_simulator(action.sizes[0])

    @property
    def info(self) -> DatasetInfo:
        """Of the training data."""
        return self.policy_spec.info

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Map a simulator's observations [N, F] to scores [N, A] over the temperature, and their maximum [N]."""
        state = self.state(observation, torch.ones_like(observation))
        if not isinstance(self.network, CandidateNetwork):
            possible = state.new_ones(len(state), len(self.info.actions))  # in a simulator every action is possible
            scores = self.scores(state, possible)[:, self._order]
        else:
            scores = self.network.of_all(state, self._order)
        scores = scores / self.config.temperature
        return scores, scores.amax(-1)

    def scores(self, state: Tensor, possible: Tensor) -> Tensor:
        """Scores of named actions [N, A]; `LEFT_OUT` for actions that must not be chosen.

        Args:
            state: preprocessed [N, S].
            possible: 1 for actions that may be taken, else 0 [N, A].
        """
        if isinstance(self.network, ConstrainedNetwork):
            return self.network(state, possible)
        return torch.where(possible != 0, self.network(state), LEFT_OUT)

    def probability(self, scores: Tensor, possible: Tensor) -> Tensor:
        """pi(a) of each named action [N, A]: 1 for the highest score, or softmax(scores / temperature).

        Args:
            scores: [N, A].
            possible: 1 for actions that may be taken, else 0 [N, A]; in a row of zeros all probabilities are 0.
        """
        found = ActionMask(possible).probability(scores, self.config)
        return torch.where(possible.any(-1, keepdim=True), found, torch.zeros_like(found))

    def _actions_of_simulator(self, count: int) -> Tensor:
        """For each action of the simulator the index of its score [A], or its preprocessed candidate [A, K]."""
        info = self.info
        if self.action is None:
            numbers = [str(i) for i in range(count)]
            order = [info.actions.index(n) for n in numbers] if set(numbers) <= set(info.actions) else range(count)
            found = torch.tensor(list(order))
        else:
            assert self.policy_spec.action is not None
            ids = self.policy_spec.action.ids
            raw = np.array([[candidate.get(name, np.nan) for name in ids] for candidate in info.candidates])
            found = torch.from_numpy(self.policy_spec.action.normalize(raw.astype(np.float64)))
        self._order: Tensor
        self.register_buffer("_order", found, persistent=False)
        return self._order
