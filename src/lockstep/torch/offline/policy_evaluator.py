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
from lockstep.torch.scoring.actor_policy import ActorPolicy
from lockstep.torch.scoring.candidates import CandidateNetwork
from lockstep.torch.scoring.choices import Candidates
from lockstep.torch.scoring.logged_policy import LoggedPolicy
from lockstep.torch.scoring.policy import ScoringPolicy
from lockstep.world import stream

_ROWS = 8192
"""The largest number of rows in one call of the networks."""
_MAX_LOG_RATIO = 345.0
"""Ratios of densities are limited to exp(345) = 1e150, so that their squares are finite."""
_SAMPLES = 16
"""Sampled actions of a continuous policy in each row, over which predictions are averaged."""


class PolicyEvaluator:
    """A policy, its models and a log.

    Args:
        policy: evaluated on the device of its parameters.
        dataset: the log.
        run: the discount.
        with_ratio: whether every row of the log has a propensity, and the policy probabilities or densities.
        unlogged: actions that do not occur in the log.
    """

    def __init__(
        self, policy: LoggedPolicy, dataset: Dataset, run: OfflineRun, *, with_ratio: bool, unlogged: NDArray[np.int64]
    ) -> None:
        self.policy, self.dataset, config = policy, dataset, run.algorithm
        self.gamma, self.unit = config.gamma, None
        if isinstance(config, OfflineDQNConfig) and config.use_time_diff:
            self.unit = config.time_diff_unit
        self.with_ratio, self.unlogged, self._seed = with_ratio, unlogged, run.seed
        self.device = next(policy.network.parameters()).device

    def describe(self) -> dict[str, Any]:
        """The policy's settings, as plain values."""
        policy, temperature = self.policy.policy_spec.algorithm.policy, None
        if isinstance(self.policy, ScoringPolicy) and policy == "softmax":
            temperature = self.policy.config.temperature
        return {
            "policy": policy,
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
        ratio, unlogged, reward, elapsed, predicted = (np.concatenate([part[i] for part in parts]) for i in range(5))
        each, unit = offsets - first, self.unit
        return Decisions(
            offsets=each,
            reward=reward,
            discount=discounts(each, self.gamma, None if unit is None else elapsed / unit),
            ratio=ratio if self.with_ratio else None,
            predicted=None if self.policy.heads is None else _predicted(predicted),
            cut=self.dataset.column("terminal")[offsets[1:] - 1] == 0,
            unlogged=unlogged,
        )

    def _scored(self, rows: Rows) -> tuple[Floats, ...]:
        """pi(a|s) / propensity [N], pi of actions that are not in the log [N], reward [N, C], time to the next row [N].

        And [N, 4, C]: R(s, a), E_pi R(s, .), Q(s, a), E_pi Q(s, .); with 0 instead of 4 where there are no models.
        """
        state = torch.from_numpy(rows.state).to(self.device)
        index = torch.from_numpy(rows.action_index).to(self.device)
        propensity = torch.from_numpy(rows.propensity).to(self.device).double()
        if isinstance(self.policy, ActorPolicy):
            ratio, unlogged, predicted = self._score_continuous(state, rows, propensity)
        elif isinstance(rows.possible_actions, Ragged):
            probability, unlogged, predicted = self._score_candidates(state, index, rows.possible_actions)
            ratio = probability / propensity
        else:
            possible = torch.from_numpy(rows.possible_actions).to(self.device)
            probability, unlogged, predicted = self._score_named(state, index, possible)
            ratio = probability / propensity
        reward = np.concatenate([rows.reward[:, None], rows.metrics], 1)
        shape = (len(rows), len(predicted), reward.shape[1])
        stacked = torch.stack(predicted, 1).cpu().numpy() if predicted else np.zeros(shape)
        columns = ratio.cpu().numpy(), unlogged.cpu().numpy(), reward, rows.time_diff, stacked
        return tuple(np.asarray(column, np.float64) for column in columns)

    def _score_named(self, state: Tensor, index: Tensor, possible: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        policy, heads = self.policy, self.policy.heads
        assert isinstance(policy, ScoringPolicy)
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
        assert isinstance(policy, ScoringPolicy) and isinstance(policy.network, CandidateNetwork)
        choices = Candidates.of(lists, self.device)
        scores = policy.network(state, choices.values, choices.owner)
        pi = choices.probability(scores.double(), policy.config)
        predicted: list[Tensor] = []
        if heads is not None:
            for head in (heads.reward, heads.value):
                outcome = head(state, choices.values, choices.owner).double()
                predicted += [choices.pick(outcome, index), choices.sum(pi[:, None] * outcome)]
        chosen = choices.pick(pi, index)
        return chosen, torch.zeros_like(chosen), predicted

    def _score_continuous(
        self, state: Tensor, rows: Rows, log_propensity: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The ratio of densities [N], 0 [N], and predictions, where E_pi is a mean over sampled actions."""
        policy, heads = self.policy, self.policy.heads
        assert isinstance(policy, ActorPolicy)
        action = torch.from_numpy(rows.action).to(self.device)
        ratio = torch.zeros_like(log_propensity)
        if self.with_ratio:
            ratio = (policy.log_density(state, action) - log_propensity).clamp(max=_MAX_LOG_RATIO).exp()
        predicted: list[Tensor] = []
        if heads is not None:
            shape = (1 if policy.deterministic else _SAMPLES, *rows.action.shape)
            noise = stream(self._seed, "estimate", int(rows.index[0])).standard_normal(shape, dtype=np.float32)
            taken = [policy.act(state, one) for one in torch.from_numpy(noise).to(self.device)]
            for head in (heads.reward, heads.value):
                of_policy = torch.stack([head.of_one(state, one).double() for one in taken]).mean(0)
                predicted += [head.of_one(state, action).double(), of_policy]
        return ratio, torch.zeros_like(ratio), predicted


def _predicted(x: Floats) -> Predicted:
    return Predicted(reward=x[:, 0], policy_reward=x[:, 1], q=x[:, 2], value=x[:, 3])
