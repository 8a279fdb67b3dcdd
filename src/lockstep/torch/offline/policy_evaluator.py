"""The probabilities of a policy, and the predictions of its models, for logged decisions.

Shapes: N rows, A actions, m candidates of all rows together, K trajectories, C columns (the reward, then each metric).
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.algorithms.offline import OfflineDQNConfig
from lockstep.data.columns import Ragged
from lockstep.data.dataset import Dataset
from lockstep.data.rows import Rows
from lockstep.estimators.trajectories import Decisions, Floats, Ints, Predicted, discounts
from lockstep.run import OfflineRun
from lockstep.torch.scoring.candidates import CandidateNetwork
from lockstep.torch.scoring.choices import Candidates
from lockstep.torch.scoring.policy import ScoringPolicy

_ROWS = 8192
"""The largest number of rows in one call of the networks."""


class PolicyEvaluator:
    """A policy, its models and a log.

    Args:
        policy: evaluated on the device of its parameters.
        dataset: the log.
        run: the discount.
        with_ratio: whether every row of the log has a propensity.
        unlogged: actions that do not occur in the log.
    """

    def __init__(
        self, policy: ScoringPolicy, dataset: Dataset, run: OfflineRun, *, with_ratio: bool, unlogged: NDArray[np.int64]
    ) -> None:
        self.policy, self.dataset, config = policy, dataset, run.algorithm
        self.gamma, self.unit = config.gamma, None
        if isinstance(config, OfflineDQNConfig) and config.use_time_diff:
            self.unit = config.time_diff_unit
        self.with_ratio, self.unlogged = with_ratio, unlogged
        self.device = next(policy.network.parameters()).device

    def describe(self) -> dict[str, Any]:
        """The policy's settings, as plain values."""
        config = self.policy.policy_spec.algorithm
        temperature = config.temperature if config.policy == "softmax" else None
        return {
            "policy": config.policy,
            "temperature": temperature,
            "gamma": self.gamma,
            "time_diff_unit": self.unit,
        }

    def decisions(self, offsets: Ints) -> Decisions:
        """The rows of consecutive trajectories; `offsets` [K + 1] are their bounds in the log."""
        first, last = int(offsets[0]), int(offsets[-1])
        parts = [
            self._scored(self.dataset.rows(np.arange(start, min(start + _ROWS, last)), next_columns=False))
            for start in range(first, last, _ROWS)
        ]
        probability, unlogged, propensity, reward, elapsed, predicted = (
            np.concatenate([part[i] for part in parts]) for i in range(6)
        )
        each, unit = offsets - first, self.unit
        return Decisions(
            offsets=each,
            reward=reward,
            discount=discounts(each, self.gamma, None if unit is None else elapsed / unit),
            ratio=probability / propensity if self.with_ratio else None,
            predicted=None if self.policy.heads is None else _predicted(predicted),
            cut=self.dataset.column("terminal")[offsets[1:] - 1] == 0,
            unlogged=unlogged,
        )

    def _scored(self, rows: Rows) -> tuple[Floats, ...]:
        """pi(a|s) [N], pi of actions that are not in the log [N], propensity [N], reward [N, C], time to the next row.

        And [N, 4, C]: R(s, a), E_pi R(s, .), Q(s, a), E_pi Q(s, .); with 0 instead of 4 where there are no models.
        """
        state = torch.from_numpy(rows.state).to(self.device)
        index = torch.from_numpy(rows.action_index).to(self.device)
        if isinstance(rows.possible_actions, Ragged):
            probability, unlogged, predicted = self._score_candidates(state, index, rows.possible_actions)
        else:
            possible = torch.from_numpy(rows.possible_actions).to(self.device)
            probability, unlogged, predicted = self._score_named(state, index, possible)
        reward = np.concatenate([rows.reward[:, None], rows.metrics], 1)
        shape = (len(rows), len(predicted), reward.shape[1])
        stacked = torch.stack(predicted, 1).cpu().numpy() if predicted else np.zeros(shape)
        columns = probability.cpu().numpy(), unlogged.cpu().numpy(), rows.propensity, reward, rows.time_diff, stacked
        return tuple(np.asarray(column, np.float64) for column in columns)

    def _score_named(self, state: Tensor, index: Tensor, possible: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        policy, heads = self.policy, self.policy.heads
        pi = policy.probability(policy.scores(state, possible), possible).double()
        unlogged = pi[:, torch.from_numpy(self.unlogged).to(self.device)].sum(1)
        predicted: list[Tensor] = []
        if heads is not None:
            every = torch.arange(len(index), device=self.device)
            for outcome in (heads.reward(state).double(), heads.value(state).double()):
                predicted += [outcome[every, index], torch.einsum("na,nac->nc", pi, outcome)]
        return pi[torch.arange(len(index), device=self.device), index], unlogged, predicted

    def _score_candidates(self, state: Tensor, index: Tensor, lists: Ragged) -> tuple[Tensor, Tensor, list[Tensor]]:
        policy, heads = self.policy, self.policy.heads
        assert isinstance(policy.network, CandidateNetwork)
        choices = Candidates.of(lists, self.device)
        scores = policy.network(state, choices.values, choices.owner)
        pi = choices.probability(scores.double(), policy.policy_spec.algorithm)
        predicted: list[Tensor] = []
        if heads is not None:
            for head in (heads.reward, heads.value):
                outcome = head(state, choices.values, choices.owner).double()
                predicted += [choices.pick(outcome, index), choices.sum(pi[:, None] * outcome)]
        chosen = choices.pick(pi, index)
        return chosen, torch.zeros_like(chosen), predicted


def _predicted(x: Floats) -> Predicted:
    return Predicted(reward=x[:, 0], policy_reward=x[:, 1], q=x[:, 2], value=x[:, 3])
