"""A policy with its preprocessing as one traced program, from raw features to scores: what an exported file holds.

Shapes: N states, F raw features of a state, A named actions; m candidates, each of one of the states, G raw features of
a candidate.
"""

import torch
from torch import Tensor, nn

from lockstep.torch.deploy.program import Program, trace
from lockstep.torch.scoring.candidates import CandidateNetwork
from lockstep.torch.scoring.policy import ScoringPolicy

_BEYOND = 2**62  # more than any candidate's number


class NamedActions(nn.Module):
    """Scores the same actions in every state."""

    def __init__(self, policy: ScoringPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(
        self, state_value: Tensor, state_presence: Tensor, possible_actions: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Raw features [N, F] float64, and which of them are present [N, F] bool.

        And which actions may be taken [N, A] bool, an input of policies from logs in which some were not possible.

        Returns:
            `scores` [N, A], `LEFT_OUT` where an action is left out; `probability` [N, A], with which the policy takes
            each action; `action` [N], the index of the highest score.
        """
        policy = self.policy
        state = policy.state(state_value, state_presence)
        every = state.new_ones(state.shape[0], len(policy.info.actions))
        possible = every if possible_actions is None else possible_actions.to(every.dtype)
        scores = policy.scores(state, possible)
        return {"scores": scores, "probability": policy.probability(scores, possible), "action": scores.argmax(-1)}


class ListedActions(nn.Module):
    """Scores the candidates of each state."""

    def __init__(self, policy: ScoringPolicy) -> None:
        super().__init__()
        self.policy, self.greedy = policy, policy.policy_spec.algorithm.policy == "greedy"

    def forward(
        self,
        state_value: Tensor,
        state_presence: Tensor,
        action_value: Tensor,
        action_presence: Tensor,
        state_of_candidate: Tensor,
    ) -> dict[str, Tensor]:
        """States [N, F] and candidates [m, G] likewise, and which state each candidate belongs to [m] int64.

        Returns:
            `scores` [m]; `probability` [m], with which the policy takes each among the candidates of its state.
        """
        policy = self.policy
        assert policy.action is not None
        state = policy.state(state_value, state_presence)
        scores = policy.network(state, policy.action(action_value, action_presence), state_of_candidate)
        return {"scores": scores, "probability": self._probability(scores, state_of_candidate, state[:, 0])}

    def _probability(self, scores: Tensor, owner: Tensor, states: Tensor) -> Tensor:
        """All on the first of the highest scores, or softmax(scores / temperature); `states` [N] for its length."""
        low = torch.full_like(states, -torch.inf)
        best = low.scatter_reduce(0, owner, scores, "amax").index_select(0, owner)
        if not self.greedy:
            odds = ((scores - best) / self.policy.policy_spec.algorithm.temperature).exp()
            total = torch.zeros_like(states).scatter_reduce(0, owner, odds, "sum")
            return odds / total.index_select(0, owner)
        number = torch.arange(scores.shape[0])
        among = torch.where(scores == best, number, _BEYOND)
        first = torch.full_like(states, _BEYOND, dtype=torch.int64).scatter_reduce(0, owner, among, "amin")
        return (first.index_select(0, owner) == number).float()


def traced(policy: ScoringPolicy) -> Program:
    """The program of a policy, on the CPU, whatever the policy is on."""
    copy = ScoringPolicy(policy.policy_spec)
    copy.load_state_dict(policy.state_dict())
    copy.heads = None  # they are for estimates
    states = (2, len(policy.info.state_features))
    examples = {"state_value": torch.zeros(states, dtype=torch.float64), "state_presence": torch.ones(states) > 0}
    axes = dict.fromkeys(examples, "states")
    if not isinstance(copy.network, CandidateNetwork):
        if policy.info.restricts_actions:
            examples["possible_actions"] = torch.ones(2, len(policy.info.actions)) > 0
            axes["possible_actions"] = "states"
        return trace(NamedActions(copy), examples, axes, ("scores", "probability", "action"))
    candidates = (3, len(policy.info.action_features))
    offered = {
        "action_value": torch.zeros(candidates, dtype=torch.float64),
        "action_presence": torch.ones(candidates) > 0,
        "state_of_candidate": torch.tensor([0, 1, 1]),
    }
    axes |= dict.fromkeys(offered, "candidates")
    return trace(ListedActions(copy), examples | offered, axes, ("scores", "probability"))
