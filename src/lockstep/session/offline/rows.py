"""Checks of logged rows before training."""

import numpy as np
from numpy.typing import NDArray

from lockstep.algorithms.offline import OfflineConfigBase, OfflineDQNConfig
from lockstep.data.dataset import Dataset
from lockstep.distributed.comm import Comm
from lockstep.errors import ConfigError
from lockstep.record.journal import Journal
from lockstep.run import OfflineRun
from lockstep.session.data_checks import check_boost, learn_from_taken, without_next_candidates

_CHUNK = 1 << 20
"""Rows of a column that are read at once."""


def check_rows(run: OfflineRun, dataset: Dataset, comm: Comm, journal: Journal) -> None:
    """Refuse rows that Q-learning cannot use with these settings, and warn of rows that it skips; *collective*.

    Raises:
        ConfigError: on all ranks, if the data of any rank are refused.
    """
    problem, warning = "", ""
    config = run.algorithm
    try:
        _check_candidates(config, dataset)
        if isinstance(config, OfflineDQNConfig):
            check_boost(config, dataset)
            _check_rewards(config, dataset)
            warning = _check_next_actions(config, dataset)
    except ConfigError as error:
        problem = str(error)
    problems: list[str] = comm.gather_object(problem, "rows")
    if any(problems):
        raise ConfigError(next(filter(None, problems)))
    if warning:
        journal.warn(warning)


def _check_candidates(config: OfflineConfigBase, dataset: Dataset) -> None:
    """Refuse rows of candidates that lack possible next actions, if the algorithm needs them."""
    changes = without_next_candidates(config)
    if dataset.info.kind != "parametric" or not changes:
        return
    terminal, lists = dataset.column("terminal"), dataset.ragged("possible_next_actions")
    for part in _chunks(dataset):
        empty = np.flatnonzero((lists.lengths(part) == 0) & (terminal[part] == 0))
        if len(empty):
            raise ConfigError(
                f"row {part.start + empty[0]} of {dataset.path} is followed by another, but has no "
                f"possible_next_actions; complete the log, or {learn_from_taken(changes)}"
            )


def _check_rewards(config: OfflineDQNConfig, dataset: Dataset) -> None:
    if config.loss != "bce":
        return
    for part in _chunks(dataset):
        reward = dataset.column("reward")[part] + _boost(config, dataset, part)
        wrong = np.flatnonzero((reward < 0) | (reward > 1))
        if len(wrong):
            raise ConfigError(
                f"loss=bce needs rewards in [0, 1], but that of row {part.start + wrong[0]} of {dataset.path} is "
                f"{reward[wrong[0]]:g}; use loss=huber or mse"
            )


def _check_next_actions(config: OfflineDQNConfig, dataset: Dataset) -> str:
    """Refuse a log without next actions for SARSA; returns a warning if some of its rows have none."""
    if config.maxq:
        return ""
    rows = dataset.info.num_rows
    unknown = sum(_num_unknown(dataset, part) for part in _chunks(dataset))
    if unknown == rows:
        raise ConfigError(
            f"maxq=false values the next state by the next action in the log, but {dataset.path} has none; "
            "use maxq=true"
        )
    if unknown == 0:
        return ""
    return (
        f"{unknown} of {rows} rows have no next action in the log: maxq=false leaves them out of the loss of the scores"
    )


def _num_unknown(dataset: Dataset, part: slice) -> int:
    """The number of rows that are not terminal and whose next action the log does not contain."""
    follows = dataset.column("terminal")[part] == 0
    if dataset.info.kind == "discrete":
        return int((follows & (dataset.column("next_action")[part] < 0)).sum())
    return int((follows & (dataset.column("has_next_action")[part] == 0)).sum())


def _boost(config: OfflineDQNConfig, dataset: Dataset, part: slice) -> NDArray[np.float32] | float:
    if not config.reward_boost:
        return 0.0
    boost = np.array([config.reward_boost.get(name, 0.0) for name in dataset.info.actions], np.float32)
    return boost[dataset.column("action")[part]]


def _chunks(dataset: Dataset) -> list[slice]:
    rows = len(dataset)
    return [slice(start, min(start + _CHUNK, rows)) for start in range(0, rows, _CHUNK)]
