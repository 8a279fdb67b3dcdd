"""The probabilities of a torch policy, and the predictions of its models, for logged rows.

Shapes: N rows, A actions, m candidates of all rows together, C columns (the reward, then each metric).
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.data.columns import Ragged
from lockstep.data.rows import Rows
from lockstep.run import OfflineRun
from lockstep.session.offline.evaluator import MAX_LOG_RATIO, NUM_SAMPLES, Scores
from lockstep.torch.scoring.actor_policy import ActorPolicy
from lockstep.torch.scoring.candidates import CandidateNetwork
from lockstep.torch.scoring.choices import Candidates
from lockstep.torch.scoring.offline_policy import OfflinePolicy
from lockstep.world import stream

_Found = tuple[Tensor, Tensor, list[Tensor]]
"""The fields of `Scores`."""


class PolicyScorer:
    """A policy and its models, as `lockstep.session.offline.evaluator.Scorer`.

    Args:
        policy: evaluated on the device of its parameters.
        run: the seed of sampled actions.
    """

    def __init__(self, policy: OfflinePolicy, run: OfflineRun) -> None:
        self.policy = policy
        self.policy_spec = policy.policy_spec
        self.device = next(policy.network.parameters()).device
        self._seed = run.seed

    @torch.inference_mode()
    def score(self, rows: Rows, *, with_ratio: bool, unlogged: NDArray[np.int64]) -> Scores:
        """Score logged rows."""
        state = torch.from_numpy(rows.state).to(self.device)
        index = torch.from_numpy(rows.action_index).to(self.device)
        propensity = torch.from_numpy(rows.propensity).to(self.device).double()
        if isinstance(self.policy, ActorPolicy):
            found = self._score_continuous(state, rows, propensity if with_ratio else None)
        elif isinstance(rows.possible_actions, Ragged):
            found = self._score_candidates(state, index, rows.possible_actions, propensity)
        else:
            possible = torch.from_numpy(rows.possible_actions).to(self.device)
            found = self._score_named(state, index, possible, propensity, torch.from_numpy(unlogged).to(self.device))
        ratio, of_unlogged, predicted = found
        return Scores(ratio.cpu().numpy(), of_unlogged.cpu().numpy(), [one.cpu().numpy() for one in predicted])

    def _score_named(
        self, state: Tensor, index: Tensor, possible: Tensor, propensity: Tensor, unlogged: Tensor
    ) -> _Found:
        policy, heads = self.policy, self.policy.heads
        assert not isinstance(policy, ActorPolicy)
        pi = policy.probability(policy.scores(state, possible), possible).double()
        every = torch.arange(len(index), device=self.device)
        predicted: list[Tensor] = []
        if heads is not None:
            for outcome in (heads.reward(state).double(), heads.value(state).double()):
                predicted += [outcome[every, index], torch.einsum("na,nac->nc", pi, outcome)]
        return pi[every, index] / propensity, pi[:, unlogged].sum(1), predicted

    def _score_candidates(self, state: Tensor, index: Tensor, lists: Ragged, propensity: Tensor) -> _Found:
        policy, heads = self.policy, self.policy.heads
        assert not isinstance(policy, ActorPolicy) and isinstance(policy.network, CandidateNetwork)
        choices = Candidates.of(lists, self.device)
        scores = policy.network(state, choices.values, choices.owner)
        pi = choices.probability(scores.double(), policy.config)
        predicted: list[Tensor] = []
        if heads is not None:
            for head in (heads.reward, heads.value):
                outcome = head(state, choices.values, choices.owner).double()
                predicted += [choices.pick(outcome, index), choices.sum(pi[:, None] * outcome)]
        chosen = choices.pick(pi, index)
        return chosen / propensity, torch.zeros_like(chosen), predicted

    def _score_continuous(self, state: Tensor, rows: Rows, log_propensity: Tensor | None) -> _Found:
        """The ratio of densities, 0, and predictions, where E_pi is a mean over sampled actions."""
        policy, heads = self.policy, self.policy.heads
        assert isinstance(policy, ActorPolicy)
        action = torch.from_numpy(rows.action).to(self.device)
        ratio = torch.zeros(len(rows), dtype=torch.float64)
        if log_propensity is not None:
            ratio = (policy.log_density(state, action) - log_propensity).clamp(max=MAX_LOG_RATIO).exp()
        predicted: list[Tensor] = []
        if heads is not None:
            shape = (1 if policy.deterministic else NUM_SAMPLES, *rows.action.shape)
            noise = stream(self._seed, "estimate", int(rows.index[0])).standard_normal(shape, dtype=np.float32)
            taken = [policy.act(state, one) for one in torch.from_numpy(noise).to(self.device)]
            for head in (heads.reward, heads.value):
                of_policy = torch.stack([head.of_one(state, one).double() for one in taken]).mean(0)
                predicted += [head.of_one(state, action).double(), of_policy]
        return ratio, torch.zeros_like(ratio), predicted
