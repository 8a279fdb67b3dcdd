"""Tracing a policy with its preprocessing into one program, from raw features to scores.

Shapes: N states, F raw features of a state, A named actions, m candidates of all states together, G raw features of a
candidate.
"""

import torch
from torch import Tensor, nn

from lockstep.torch.deploy.program import Program, trace
from lockstep.torch.scoring.actor_policy import ActorPolicy
from lockstep.torch.scoring.candidates import CandidateNetwork
from lockstep.torch.scoring.offline_policy import OfflinePolicy, policy_of
from lockstep.torch.scoring.policy import ScoringPolicy

_NO_INDEX = 2**62  # larger than the index of any candidate


class NamedActionScorer(nn.Module):
    """Scores the same actions in every state."""

    def __init__(self, policy: ScoringPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(
        self, state_value: Tensor, state_presence: Tensor, possible_actions: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Score the named actions.

        Args:
            state_value: raw features [N, F], float64.
            state_presence: which of them are present [N, F], bool.
            possible_actions: which actions may be taken [N, A], bool; only if some were impossible in the log.

        Returns:
            `scores` [N, A], `LEFT_OUT` for excluded actions; `probability` of each action [N, A]; `action` [N], the
            index of the highest score.
        """
        policy = self.policy
        state = policy.state(state_value, state_presence)
        if possible_actions is None:
            possible = state.new_ones(state.shape[0], len(policy.info.actions))
        else:
            possible = possible_actions.to(state.dtype)
        scores = policy.scores(state, possible)
        return {"scores": scores, "probability": policy.probability(scores, possible), "action": scores.argmax(-1)}


class CandidateScorer(nn.Module):
    """Scores the candidates of each state."""

    def __init__(self, policy: ScoringPolicy) -> None:
        super().__init__()
        self.policy = policy
        self.greedy = policy.config.policy == "greedy"

    def forward(
        self,
        state_value: Tensor,
        state_presence: Tensor,
        action_value: Tensor,
        action_presence: Tensor,
        state_of_candidate: Tensor,
    ) -> dict[str, Tensor]:
        """Score the candidates.

        Args:
            state_value: raw features of the states [N, F], float64.
            state_presence: which of them are present [N, F], bool.
            action_value: raw features of the candidates [m, G], float64.
            action_presence: which of them are present [m, G], bool.
            state_of_candidate: the index of each candidate's state [m], int64.

        Returns:
            `scores` [m]; `probability` [m] of each among the candidates of its state.
        """
        policy = self.policy
        assert policy.action is not None
        state = policy.state(state_value, state_presence)
        scores = policy.network(state, policy.action(action_value, action_presence), state_of_candidate)
        return {"scores": scores, "probability": self._probability(scores, state_of_candidate, state[:, 0])}

    def _probability(self, scores: Tensor, owner: Tensor, states: Tensor) -> Tensor:
        """1 for the first candidate with the highest score, or softmax(scores / temperature) [m]; `states` [N]."""
        low = torch.full_like(states, -torch.inf)
        best = low.scatter_reduce(0, owner, scores, "amax").index_select(0, owner)
        if not self.greedy:
            weight = ((scores - best) / self.policy.config.temperature).exp()
            total = torch.zeros_like(states).scatter_reduce(0, owner, weight, "sum")
            return weight / total.index_select(0, owner)
        index = torch.arange(scores.shape[0])
        index_if_best = torch.where(scores == best, index, _NO_INDEX)
        first = torch.full_like(states, _NO_INDEX, dtype=torch.int64).scatter_reduce(0, owner, index_if_best, "amin")
        return (first.index_select(0, owner) == index).float()


class ContinuousActor(nn.Module):
    """The best action of each state."""

    def __init__(self, policy: ActorPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, state_value: Tensor, state_presence: Tensor) -> dict[str, Tensor]:
        """Act.

        Args:
            state_value: raw features [N, F], float64.
            state_presence: which of them are present [N, F], bool.

        Returns:
            `action` [N, K], that of the mean, within the bounds of the log; `parameters` [N, P] of the distribution of
            actions scaled to [-1, 1]: means and log standard deviations, of CQL before tanh and not clamped yet, or the
            action of a deterministic policy.
        """
        policy = self.policy
        parameters = policy.network.actor(policy.state(state_value, state_presence))
        return {"action": policy.unscaled(policy.network.actor.mode(parameters)), "parameters": parameters}


def trace_policy(policy: OfflinePolicy) -> Program:
    """Trace a copy of the policy on the CPU. The policy itself is not modified."""
    copy = policy_of(policy.policy_spec)
    copy.load_state_dict(policy.state_dict())
    copy.heads = None  # only estimators use them
    states = (2, len(policy.info.state_features))
    examples = {"state_value": torch.zeros(states, dtype=torch.float64), "state_presence": torch.ones(states) > 0}
    axes = dict.fromkeys(examples, "states")
    if isinstance(copy, ActorPolicy):
        return trace(ContinuousActor(copy), examples, axes, ("action", "parameters"))
    if not isinstance(copy.network, CandidateNetwork):
        if policy.info.restricts_actions:
            examples["possible_actions"] = torch.ones(2, len(policy.info.actions)) > 0
            axes["possible_actions"] = "states"
        return trace(NamedActionScorer(copy), examples, axes, ("scores", "probability", "action"))
    candidates = (3, len(policy.info.action_features))
    of_candidates = {
        "action_value": torch.zeros(candidates, dtype=torch.float64),
        "action_presence": torch.ones(candidates) > 0,
        "state_of_candidate": torch.tensor([0, 1, 1]),
    }
    axes |= dict.fromkeys(of_candidates, "candidates")
    return trace(CandidateScorer(copy), examples | of_candidates, axes, ("scores", "probability"))
