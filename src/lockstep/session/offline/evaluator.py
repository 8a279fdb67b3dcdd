"""Logged decisions as the estimators need them: the probabilities of a policy, and the predictions of its models.

Shapes: N rows, K trajectories, C columns (the reward, then each metric).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.data.dataset import Dataset
from lockstep.data.rows import Rows
from lockstep.estimators.trajectories import Decisions, Floats, Ints, Predicted, discounts
from lockstep.run import OfflineRun
from lockstep.session.offline.policy_spec import OfflinePolicySpec

MAX_ROWS = 8192
"""The largest number of rows in one call of a scorer."""
MAX_LOG_RATIO = 345.0
"""Ratios of densities are limited to exp(345) = 1e150, so that their squares are finite."""
NUM_SAMPLES = 16
"""Sampled actions of a continuous policy in each row, over which predictions are averaged."""


class Scores(NamedTuple):
    """What a policy and its models compute for N logged rows."""

    ratio: Floats
    """pi(a|s) / propensity [N], of probabilities or of densities; any finite number if it was not requested."""
    unlogged: Floats
    """The probability of the actions that are not in the log [N]."""
    predicted: Sequence[Floats]
    """R(s, a), E_pi R(s, .), Q(s, a) and E_pi Q(s, .) [N, C] each; empty without models."""


class Scorer(Protocol):
    """A policy with its models, as each backend computes them."""

    policy_spec: OfflinePolicySpec
    """Everything about the policy but its parameters."""

    def score(self, rows: Rows, *, with_ratio: bool, unlogged: NDArray[np.int64]) -> Scores:
        """Score at most `MAX_ROWS` rows.

        Args:
            rows: of the log.
            with_ratio: whether to compute the ratio.
            unlogged: actions that do not occur in the log.
        """
        ...


class PolicyEvaluator:
    """A policy, its models and a log.

    Args:
        scorer: the policy and its models.
        dataset: the log.
        run: the discount.
        with_ratio: whether every row of the log has a propensity, and the policy probabilities or densities.
        unlogged: actions that do not occur in the log.
    """

    def __init__(
        self, scorer: Scorer, dataset: Dataset, run: OfflineRun, *, with_ratio: bool, unlogged: NDArray[np.int64]
    ) -> None:
        config = run.algorithm
        self.dataset = dataset
        self.gamma = config.gamma
        self.unit: float | None = None
        if isinstance(config, OfflineDQNConfig) and config.use_time_diff:
            self.unit = config.time_diff_unit
        self.with_ratio = with_ratio
        self.unlogged = unlogged
        self._scorer = scorer

    def describe(self) -> dict[str, Any]:
        """The policy's settings, as plain values."""
        config, temperature = self._scorer.policy_spec.algorithm, None
        if isinstance(config, OfflineDQNConfig | CloningConfig) and config.policy == "softmax":
            temperature = config.temperature
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
            self._scored(self.dataset.rows(np.arange(start, min(start + MAX_ROWS, last)), next_columns=False))
            for start in range(first, last, MAX_ROWS)
        ]
        ratio, unlogged, reward, elapsed, predicted = (np.concatenate([part[i] for part in parts]) for i in range(5))
        each, unit = offsets - first, self.unit
        return Decisions(
            offsets=each,
            reward=reward,
            discount=discounts(each, self.gamma, None if unit is None else elapsed / unit),
            ratio=ratio if self.with_ratio else None,
            predicted=_predicted(predicted) if self._scorer.policy_spec.has_models else None,
            cut=self.dataset.column("terminal")[offsets[1:] - 1] == 0,
            unlogged=unlogged,
        )

    def _scored(self, rows: Rows) -> tuple[Floats, ...]:
        """The ratio [N], pi of actions that are not in the log [N], reward [N, C], time to the next row [N].

        And the predictions [N, 4, C]; with 0 instead of 4 where there are no models.
        """
        scores = self._scorer.score(rows, with_ratio=self.with_ratio, unlogged=self.unlogged)
        reward = np.concatenate([rows.reward[:, None], rows.metrics], 1)
        nothing = np.zeros((len(rows), 0, reward.shape[1]))
        predicted = np.stack(scores.predicted, 1) if scores.predicted else nothing
        columns = scores.ratio, scores.unlogged, reward, rows.time_diff, predicted
        return tuple(np.asarray(column, np.float64) for column in columns)


def _predicted(x: Floats) -> Predicted:
    return Predicted(reward=x[:, 0], policy_reward=x[:, 1], q=x[:, 2], value=x[:, 3])
