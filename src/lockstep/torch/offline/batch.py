"""Logged rows as tensors on the device, and what all learners of named actions do with them.

Shapes: N rows of a shard's part of a minibatch, S state, A actions, M metrics.
"""

from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lockstep.algorithms.offline import CloningConfig, OfflineDQNConfig
from lockstep.data.dataset import Dataset
from lockstep.data.rows import Rows
from lockstep.errors import ConfigError
from lockstep.record.journal import Journal
from lockstep.run import OfflineRun
from lockstep.session.checks import check_boost
from lockstep.torch.comm import Comm
from lockstep.torch.offline.parametric_batch import ParametricBatch, check_candidates
from lockstep.torch.scoring.networks import ScoreHeads, masked
from lockstep.torch.value_losses import chosen, squared

_CHUNK = 1 << 20


@dataclass(slots=True)
class LoggedBatch:
    """Logged rows of one shard [N], of named actions."""

    index: Tensor
    """Which rows of the data these are."""
    state: Tensor
    action: Tensor
    reward: Tensor
    """sum_k gamma^k r_k over the rewards before the target bootstraps."""
    metrics: Tensor
    """Likewise of each metric [N, M]."""
    next_state: Tensor
    next_action: Tensor
    has_next_action: Tensor
    """0 where the log does not tell the next action, else 1."""
    possible_actions: Tensor
    """1 where an action was possible [N, A], else 0."""
    possible_next_actions: Tensor
    not_terminal: Tensor
    """0 where nothing follows those rewards, else 1."""
    steps: Tensor
    """How many rewards those are."""
    time_diff: Tensor
    weight: Tensor
    """0 of rows that only fill up a batch, else 1."""

    @staticmethod
    def of(rows: Rows, device: torch.device) -> "LoggedBatch":
        """What a reader gave, on the device; no copy is made where that is the CPU."""
        columns = {name: torch.from_numpy(getattr(rows, name)).to(device) for name in _COLUMNS}
        return LoggedBatch(**columns)

    def row(self, i: int) -> "LoggedBatch":
        """Row `i` alone."""
        return LoggedBatch(**{name: column[i : i + 1] for name, column in self.columns().items()})

    def columns(self) -> dict[str, Tensor]:
        """All of them, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


_COLUMNS = tuple(field.name for field in fields(LoggedBatch))


def discount_of(config: OfflineDQNConfig | CloningConfig, batch: LoggedBatch | ParametricBatch) -> Tensor:
    """What the next decision counts [N]: gamma per reward before it, or per unit of time; 0 where there is none."""
    exponent = batch.steps
    if isinstance(config, OfflineDQNConfig) and config.use_time_diff:
        exponent = batch.time_diff / config.time_diff_unit
    return batch.not_terminal * config.gamma**exponent


def imitation(logits: Tensor, batch: LoggedBatch, smoothing: float = 0.0) -> Tensor:
    """-sum_a t(a) log softmax(logits)(a) over the possible actions [N].

    Args:
        logits: [N, A].
        batch: t is 1 for the action in the log,
        smoothing: or 1 less this, which is spread evenly over the possible actions (Szegedy et al., 2016).
    """
    possible = batch.possible_actions
    log_p = masked(logits, possible).log_softmax(-1)
    row = -chosen(log_p, batch.action)
    if smoothing == 0:
        return row
    even = -(log_p * possible).sum(-1) / possible.sum(-1)
    return (1.0 - smoothing) * row + smoothing * even


def outcomes(heads: ScoreHeads, target: nn.Module, one: LoggedBatch, policy: Tensor, discount: Tensor) -> list[Tensor]:
    """Losses of the models of what comes of an action, of rows [N]: of the reward, of the policy's value.

    With o = (reward, metrics), R(s, a) tends to o, and V(s, a) to o + discount sum_a' pi(a' | s') V'(s', a'): expected
    SARSA (van Seijen et al., 2009), which makes it the value of the policy pi that is being learned.

    Args:
        heads: R and V.
        target: V'.
        one: rows of one step.
        policy: pi(. | s') [N, A].
        discount: of what follows [N].
    """
    outcome = torch.cat([one.reward.unsqueeze(-1), one.metrics], -1)
    with torch.no_grad():
        following = (policy.unsqueeze(-1) * target(one.next_state).float()).sum(1)
        goal = outcome + discount.unsqueeze(-1) * following
    errors = (
        chosen(heads.reward(one.state).float(), one.action) - outcome,
        chosen(heads.value(one.state).float(), one.action) - goal,
    )
    return [squared(error).mean(-1) for error in errors]


def check_rows(run: OfflineRun, dataset: Dataset, comm: Comm, journal: Journal) -> None:
    """Refuse rows that the settings cannot learn from, and say what they leave out; *collective*.

    Raises:
        ConfigError: on all ranks, if any of them holds such data.
    """
    problem, words = "", ""
    try:
        check_candidates(run.algorithm, dataset)
        words = _checked(run.algorithm, dataset)
    except ConfigError as error:
        problem = str(error)
    problems: list[str] = comm.gather_object(problem, "rows")
    if any(problems):
        raise ConfigError(next(filter(None, problems)))
    if words:
        journal.warn(words)


def _checked(config: OfflineDQNConfig | CloningConfig, dataset: Dataset) -> str:
    """What the user should know, if anything."""
    info = dataset.info
    if not isinstance(config, OfflineDQNConfig):
        return ""
    check_boost(config, dataset)
    unknown = 0
    for start in range(0, info.num_rows, _CHUNK):
        part = slice(start, min(start + _CHUNK, info.num_rows))
        if config.loss == "bce":
            reward = dataset.column("reward")[part]
            reward = reward + _boost(config, dataset, part)
            wrong = np.flatnonzero((reward < 0) | (reward > 1))
            if len(wrong):
                raise ConfigError(
                    f"loss=bce needs rewards in [0, 1], but that of row {start + wrong[0]} of {dataset.path} is "
                    f"{reward[wrong[0]]:g}; use loss=huber or mse"
                )
        if not config.maxq:
            unknown += _unknown(dataset, part)
    if unknown == info.num_rows:
        raise ConfigError(
            f"maxq=false values the next state by the next action in the log, but {dataset.path} has none; "
            "use maxq=true"
        )
    if unknown:
        return (
            f"{unknown} of {info.num_rows} rows have no next action in the log: maxq=false leaves them out of the loss "
            "of the scores"
        )
    return ""


def _unknown(dataset: Dataset, part: slice) -> int:
    """Rows that something follows, although the log does not tell the next action."""
    follows = dataset.column("terminal")[part] == 0
    if dataset.info.kind == "discrete":
        return int((follows & (dataset.column("next_action")[part] < 0)).sum())
    return int((follows & (dataset.column("has_next_action")[part] == 0)).sum())


def _boost(config: OfflineDQNConfig, dataset: Dataset, part: slice) -> NDArray[np.float32] | float:
    """What is added to the rewards of some rows."""
    if not config.reward_boost:
        return 0.0
    boost = np.array([config.reward_boost.get(name, 0.0) for name in dataset.info.actions], np.float32)
    return boost[dataset.column("action")[part]]
