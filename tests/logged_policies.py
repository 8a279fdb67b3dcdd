"""Policies and batches of made data, for tests of those who learn from them."""

from collections.abc import Sequence

import numpy as np

from lockstep.data.dataset import Dataset
from lockstep.data.rows import Rows
from lockstep.run import OfflineRun, ScoreNetworkConfig
from lockstep.torch.scoring.logged_policy import LoggedPolicy, policy_of
from lockstep.torch.scoring.policy_spec import PolicySpec

SMALL = ScoreNetworkConfig(hidden=(8, 5))


def policy_for(run: OfflineRun, dataset: Dataset, seed: int = 0) -> LoggedPolicy:
    """What learns, as it begins."""
    about = PolicySpec(
        info=dataset.info,
        state=dataset.state_features,
        action=dataset.action_features,
        network=run.network,
        algo=run.algo,
        algorithm=run.algorithm,
    )
    return policy_of(about, seed)


def draws(num_rows: int, sizes: Sequence[int], seed: int) -> list[np.ndarray]:
    """Which rows each shard gets: as many as `sizes` says."""
    random = np.random.default_rng(seed)
    return [random.integers(num_rows, size=size) for size in sizes]


def part(dataset: Dataset, index: np.ndarray, padding: int = 0, **window: float) -> Rows:
    """Rows of a shard's part of a minibatch, the last `padding` of which only fill it up."""
    rows = dataset.rows(index, **window)
    rows.weight[len(index) - padding :] = 0
    return rows
