"""Networks that score the named actions of logged data, and those that predict what comes of them.

Shapes: N rows, S numbers of a normalized state, A actions, M metrics.
"""

import math

import torch
from torch import Tensor, nn

from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.run import ScoreNetworkConfig
from lockstep.torch.encoders import Mlp
from lockstep.torch.q_networks import Head

LEFT_OUT = -1e9
"""The score of an action that must not be chosen: it is not possible, or BCQ leaves it out."""
_NEVER = torch.finfo(torch.float32).min


class ScoreNetwork(nn.Module):
    """Linear layers from a state to a number for each action; with `dueling` in two streams, each with a last layer.

    Args:
        state_size: S.
        num_actions: A, or how many numbers else.
        config: the layers.
        dueling: add what the state is worth to how much better than the mean each action is (Wang et al., 2016,
            arXiv:1511.06581, eq. 9).
    """

    def __init__(self, state_size: int, num_actions: int, config: ScoreNetworkConfig, *, dueling: bool = False) -> None:
        super().__init__()
        sizes = (state_size, *config.hidden[:-1])
        self.body = Mlp(sizes, config.activation, last_gain=math.sqrt(2), activate_last=True)
        sizes = (self.body.num_features, *config.hidden[-1:])
        self.advantage = Head((*sizes, num_actions), config.activation, None)
        self.value = Head((*sizes, 1), config.activation, None) if dueling else None

    def initialize(self, generator: torch.Generator) -> None:
        """Draw the parameters."""
        for part in (self.body, self.advantage, self.value):
            if part is not None:
                part.initialize(generator)

    def forward(self, state: Tensor) -> Tensor:
        """[N, S] to [N, A]."""
        features = self.body(state)
        advantage = self.advantage(features)
        if self.value is None:
            return advantage
        return self.value(features) + advantage - advantage.mean(1, keepdim=True)


class ConstrainedNetwork(nn.Module):
    """Scores without the actions that the log hardly takes (discrete BCQ; Fujimoto et al., 2019, arXiv:1910.01708).

    Attributes:
        scores: [N, S] to Q [N, A].
        behaviour: [N, S] to logits [N, A] of what the log does.
        threshold: an action of probability p is left out where p / max p is lower.
    """

    def __init__(
        self, state_size: int, num_actions: int, config: ScoreNetworkConfig, *, dueling: bool, threshold: float
    ) -> None:
        super().__init__()
        self.scores = ScoreNetwork(state_size, num_actions, config, dueling=dueling)
        self.behaviour = ScoreNetwork(state_size, num_actions, config)
        self.threshold = threshold

    def initialize(self, generator: torch.Generator) -> None:
        """Draw the parameters."""
        self.scores.initialize(generator)
        self.behaviour.initialize(generator)

    def forward(self, state: Tensor, possible: Tensor) -> Tensor:
        """[N, S], and 0 where an action is not possible [N, A], to Q [N, A]; `LEFT_OUT` where it is not `allowed`."""
        return torch.where(self.allowed(state, possible), self.scores(state), LEFT_OUT)

    def allowed(self, state: Tensor, possible: Tensor) -> Tensor:
        """Whether an action is possible, and the log takes it often enough among those that are; bool [N, A].

        Acting, judging and the target of Q-learning all ask this. The behaviour model learns only which of the
        *possible* actions the log takes: its logits of the others mean nothing, so they must not be the favourite.
        """
        return likely(masked(self.behaviour(state), possible), self.threshold) & (possible != 0)


class ScoreHeads(nn.Module):
    """What comes of an action: models for the estimates that need them, learned beside the policy.

    Attributes:
        reward: what the action gives at once.
        value: what it gives in all, discounted, if the policy goes on from there.

    Both take states [N, S] to [N, A, 1 + M]: the reward, then each metric.
    """

    def __init__(self, state_size: int, num_actions: int, num_metrics: int, config: ScoreNetworkConfig) -> None:
        super().__init__()
        self.reward, self.value = (OutcomeNetwork(state_size, num_actions, 1 + num_metrics, config) for _ in range(2))

    def initialize(self, generator: torch.Generator) -> None:
        """Draw the parameters."""
        self.reward.network.initialize(generator)
        self.value.network.initialize(generator)


class OutcomeNetwork(nn.Module):
    """Several numbers for each action: [N, S] to [N, A, outcomes]."""

    def __init__(self, state_size: int, num_actions: int, outcomes: int, config: ScoreNetworkConfig) -> None:
        super().__init__()
        self.network, self._shape = ScoreNetwork(state_size, num_actions * outcomes, config), (num_actions, outcomes)

    def forward(self, state: Tensor) -> Tensor:
        """[N, S] to [N, A, outcomes]."""
        return self.network(state).unflatten(1, self._shape)


def score_network(
    state_size: int, num_actions: int, config: ScoreNetworkConfig, algorithm: OfflineDQNConfig | CloningConfig
) -> ScoreNetwork | ConstrainedNetwork:
    """The network that the algorithm scores named actions with."""
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


def masked(scores: Tensor, possible: Tensor) -> Tensor:
    """Scores [N, A], float32, as low as can be where an action is not possible; finite, so that 0 times one is 0."""
    return scores.float().masked_fill(possible == 0, _NEVER)


def probability(scores: Tensor, possible: Tensor, config: OfflineDQNConfig | CloningConfig) -> Tensor:
    """How often the policy takes each action [N, A]: the best possible one, or by softmax(scores / temperature).

    Args:
        scores: [N, A].
        possible: 0 where an action is not [N, A].
        config: `policy` and `temperature`.
    """
    if config.policy == "greedy":
        best = masked(scores, possible).argmax(-1, keepdim=True)
        return torch.zeros_like(scores, dtype=torch.float32).scatter_(-1, best, 1.0)
    return masked(scores.float() / config.temperature, possible).softmax(-1)
