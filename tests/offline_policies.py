"""Policies and batches of made data, for tests of those who learn from them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lockstep.data.dataset import Dataset
from lockstep.data.rows import Rows
from lockstep.run import OfflineRun, ScoreNetworkConfig
from lockstep.session.offline.policy_spec import OfflinePolicySpec

if TYPE_CHECKING:
    from lockstep.torch.scoring.offline_policy import OfflinePolicy

SMALL = ScoreNetworkConfig(hidden=(8, 5))


def spec_for(run: OfflineRun, dataset: Dataset) -> OfflinePolicySpec:
    """Everything about the policy of a run but its parameters."""
    return OfflinePolicySpec(
        info=dataset.info,
        state=dataset.state_features,
        action=dataset.action_features,
        network=run.network,
        algo=run.algo,
        algorithm=run.algorithm,
    )


def policy_for(run: OfflineRun, dataset: Dataset, seed: int = 0) -> "OfflinePolicy":
    """The torch policy that learns, with its initial parameters."""
    from lockstep.torch.scoring.offline_policy import policy_of

    return policy_of(spec_for(run, dataset), seed)


def draws(num_rows: int, sizes: Sequence[int], seed: int) -> list[np.ndarray]:
    """Which rows each shard gets: as many as `sizes` says."""
    random = np.random.default_rng(seed)
    return [random.integers(num_rows, size=size) for size in sizes]


def part(dataset: Dataset, index: np.ndarray, padding: int = 0, **window: float) -> Rows:
    """Rows of a shard's part of a minibatch, the last `padding` of which only fill it up."""
    rows = dataset.rows(index, **window)
    rows.weight[len(index) - padding :] = 0
    return rows
