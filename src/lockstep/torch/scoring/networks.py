"""Networks that score the named actions of logged data, and networks that predict their outcomes.

Shapes: N rows, S numbers of a normalized state, A actions, M metrics.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.config.network import ScoreNetworkConfig
from lockstep.torch.encoders import Mlp
from lockstep.torch.q_networks import Head
from lockstep.torch.scoring.candidates import CandidateNetwork
from lockstep.torch.scoring.choices import ActionMask, Choices
from lockstep.torch.value_losses import gather_actions

LEFT_OUT = -1e9
"""The score of an action that must not be chosen: it is impossible, or BCQ leaves it out."""


class ScoreNetwork(nn.Module):
    """Linear layers from a state to a score for each action; with `dueling` in two streams, each with a last layer.

    Args:
        state_size: S.
        num_actions: A, the number of outputs.
        config: the layers.
        dueling: Q(s, a) = V(s) + A(s, a) - mean_b A(s, b) (Wang et al., 2016, arXiv:1511.06581, eq. 9).
    """

    def __init__(self, state_size: int, num_actions: int, config: ScoreNetworkConfig, *, dueling: bool = False) -> None:
        super().__init__()
        sizes = (state_size, *config.hidden[:-1])
        self.body = Mlp(sizes, config.activation, last_gain=math.sqrt(2), activate_last=True)
        sizes = (self.body.num_features, *config.hidden[-1:])
        self.advantage = Head((*sizes, num_actions), config.activation, None)
        self.value = Head((*sizes, 1), config.activation, None) if dueling else None

    def forward(self, state: Tensor) -> Tensor:
        """[N, S] to [N, A]."""
        features = self.body(state)
        advantage = self.advantage(features)
        if self.value is None:
            return advantage
        return self.value(features) + advantage - advantage.mean(1, keepdim=True)

    def of_choices(self, state: Tensor, choices: Choices) -> Tensor:
        """Scores of all actions [N, A] in states [N, S]."""
        return self(state)

    def of_one(self, state: Tensor, action: Tensor) -> Tensor:
        """Scores of one action [N] in each state [N, S]; [N]."""
        return gather_actions(self(state), action)


class ConstrainedNetwork(nn.Module):
    """Scores without the actions that the log hardly takes (discrete BCQ; Fujimoto et al., 2019, arXiv:1910.01708).

    Attributes:
        scores: [N, S] to Q [N, A].
        behaviour: [N, S] to logits [N, A] of what the log does.
        threshold: an action with probability p is left out if p / max p is lower than this.
    """

    def __init__(
        self, state_size: int, num_actions: int, config: ScoreNetworkConfig, *, dueling: bool, threshold: float
    ) -> None:
        super().__init__()
        self.scores = ScoreNetwork(state_size, num_actions, config, dueling=dueling)
        self.behaviour = ScoreNetwork(state_size, num_actions, config)
        self.threshold = threshold

    def forward(self, state: Tensor, possible: Tensor) -> Tensor:
        """Q [N, A] of states [N, S]; `LEFT_OUT` where an action is not `allowed` (`possible` [N, A])."""
        return torch.where(self.allowed(state, possible), self.scores(state), LEFT_OUT)

    def allowed(self, state: Tensor, possible: Tensor) -> Tensor:
        """Whether an action is possible and the log takes it often enough among the possible ones; bool [N, A].

        Acting, evaluation and the target of Q-learning share this rule. The behaviour model is trained on *possible*
        actions only. Its logits of impossible ones are arbitrary, so they are masked before the maximum is taken.
        """
        return likely(ActionMask(possible).masked(self.behaviour(state)), self.threshold) & (possible != 0)


class OutcomeHeads(nn.Module):
    """Models of the outcome of an action, which some estimators need; trained together with the policy.

    Outputs are the reward, then each metric.

    Attributes:
        reward: E[r, metrics | s, a].
        value: Q_pi(s, a), the action value of the policy: the discounted sums of the same from (s, a) on.
    """

    def __init__(self, make: "Callable[[], OutcomeNetwork | CandidateNetwork]") -> None:
        super().__init__()
        self.reward = make()
        self.value = make()


class OutcomeNetwork(nn.Module):
    """Several outputs for each action: [N, S] to [N, A, outcomes]."""

    def __init__(self, state_size: int, num_actions: int, outcomes: int, config: ScoreNetworkConfig) -> None:
        super().__init__()
        self.network, self._shape = ScoreNetwork(state_size, num_actions * outcomes, config), (num_actions, outcomes)

    def forward(self, state: Tensor) -> Tensor:
        """[N, S] to [N, A, outcomes]."""
        return self.network(state).unflatten(1, self._shape)

    def of_choices(self, state: Tensor, choices: Choices) -> Tensor:
        """Outcomes of all actions [N, A, outcomes] in states [N, S]."""
        return self(state)

    def of_one(self, state: Tensor, action: Tensor) -> Tensor:
        """Outcomes of one action [N] in each state [N, S]; [N, outcomes]."""
        return gather_actions(self(state), action)


def score_network(
    state_size: int, num_actions: int, config: ScoreNetworkConfig, algorithm: OfflineDQNConfig | CloningConfig
) -> ScoreNetwork | ConstrainedNetwork:
    """The network with which the algorithm scores named actions."""
    if not isinstance(algorithm, OfflineDQNConfig):
        return ScoreNetwork(state_size, num_actions, config)
    dueling, threshold = algorithm.dueling, algorithm.bcq_threshold
    if threshold is None:
        return ScoreNetwork(state_size, num_actions, config, dueling=dueling)
    return ConstrainedNetwork(state_size, num_actions, config, dueling=dueling, threshold=threshold)


def likely(logits: Tensor, threshold: float) -> Tensor:
    """Where p(a | s) / max p(. | s) >= threshold, p = softmax(logits); bool [N, A]."""
    logits = logits.float()
    ratio = logits - logits.amax(-1, keepdim=True)  # log (p / max p)
    return ratio >= (math.log(threshold) if threshold > 0 else -math.inf)
