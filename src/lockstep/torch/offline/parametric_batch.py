"""Logged rows whose actions are features, as tensors on the device.

Shapes: N rows of a shard's part of a minibatch, S numbers of a state, K of an action, M metrics, m candidates of all
rows together.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.algorithms.offline import LoggedConfig
from lockstep.data.columns import Ragged
from lockstep.data.dataset import Dataset
from lockstep.data.rows import Rows
from lockstep.errors import ConfigError
from lockstep.session.checks import without_candidates
from lockstep.torch.scoring.ragged import Candidates

_CHUNK = 1 << 20


@dataclass(slots=True)
class ParametricBatch:
    """Logged rows of one shard [N]. What is named `next_*` follows the last of the rewards that are summed."""

    index: Tensor
    """Which rows of the data these are."""
    state: Tensor
    action: Tensor
    """What was done [N, K]."""
    action_index: Tensor
    """Which of the row's possible actions that was."""
    reward: Tensor
    """sum_k gamma^k r_k over the rewards before the target bootstraps."""
    metrics: Tensor
    """Likewise of each metric [N, M]."""
    next_state: Tensor
    """[N, S]; zeros where nothing follows."""
    next_action: Tensor
    """[N, K]; zeros where nothing follows, or it is not known."""
    has_next_action: Tensor
    """0 where the log does not tell the next action, else 1."""
    possible_actions: Candidates
    possible_next_actions: Candidates
    """None where nothing follows."""
    not_terminal: Tensor
    """0 where nothing follows those rewards, else 1."""
    steps: Tensor
    """How many rewards those are."""
    time_diff: Tensor
    weight: Tensor
    """0 of rows that only fill up a batch, else 1."""

    @staticmethod
    def of(rows: Rows, device: torch.device) -> "ParametricBatch":
        """What a reader gave, on the device."""
        found: dict[str, Any] = {f.name: getattr(rows, f.name) for f in fields(ParametricBatch)}
        for name, column in found.items():
            lists = isinstance(column, Ragged)
            found[name] = Candidates.of(column, device) if lists else torch.from_numpy(column).to(device)
        return ParametricBatch(**found)

    def row(self, i: int) -> "ParametricBatch":
        """Row `i` alone."""
        found: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, column in found.items():
            found[name] = column.of_row(i) if isinstance(column, Candidates) else column[i : i + 1]
        return ParametricBatch(**found)

    def columns(self) -> dict[str, Tensor]:
        """All of them, by name; of candidates their values and where each row's begin."""
        found: dict[str, Tensor] = {}
        for f in fields(self):
            column: Tensor | Candidates = getattr(self, f.name)
            if isinstance(column, Candidates):
                found |= {f.name: column.values, f"{f.name}_offsets": column.offsets}
            else:
                found[f.name] = column
        return found


def check_candidates(config: LoggedConfig, dataset: Dataset) -> None:
    """Refuse parametric data whose rows do not say what could be done next, where that is what is learned from.

    Raises:
        ConfigError: a row that something follows has no candidates.
    """
    way_out = without_candidates(config)
    if dataset.info.kind != "parametric" or way_out is None:
        return
    terminal, lists = dataset.column("terminal"), dataset.ragged("possible_next_actions")
    for start in range(0, len(dataset), _CHUNK):
        part = slice(start, min(start + _CHUNK, len(dataset)))
        empty = np.flatnonzero((lists.lengths(part) == 0) & (terminal[part] == 0))
        if len(empty):
            raise ConfigError(
                f"row {start + empty[0]} of {dataset.path} is followed by another, but has no possible_next_actions; "
                f"complete the log, or {way_out}"
            )
