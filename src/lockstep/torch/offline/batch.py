"""Logged rows as tensors on the device.

Shapes: N rows of a shard's part of a minibatch, S numbers of a state, A named actions, K numbers of a candidate, M
metrics.
"""

from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor

from lockstep.data.columns import Ragged
from lockstep.data.rows import Rows
from lockstep.torch.batch import RowBatch
from lockstep.torch.scoring.choices import ActionMask, Candidates, Choices
from lockstep.torch.transfer import to_device


@dataclass(slots=True)
class LoggedBatch(RowBatch):
    """Logged rows of one shard [N]. Fields named `next_*` belong to the state after the last of the summed rewards."""

    index: Tensor
    """Row numbers in the data."""
    state: Tensor
    """[N, S]."""
    action: Tensor
    """The logged action: index of a named action [N], or features of a candidate [N, K]."""
    action_index: Tensor
    """Index of the logged action among the row's possible actions [N]; for named actions `action` itself."""
    reward: Tensor
    """sum_k gamma^k r_k over the rewards before the target bootstraps."""
    metrics: Tensor
    """The same sum for each metric [N, M]."""
    next_state: Tensor
    """[N, S]; zeros after the end of a trajectory."""
    next_action: Tensor
    """As `action`; zeros after the end, or if it is unknown."""
    has_next_action: Tensor
    """0 if the log does not contain the next action, else 1."""
    possible_actions: Choices
    possible_next_actions: Choices
    """None of them after the end of a trajectory."""
    not_terminal: Tensor
    """0 if the trajectory ended within those rewards, else 1."""
    steps: Tensor
    """The number of those rewards."""
    time_diff: Tensor
    weight: Tensor
    """0 for padding rows of the last minibatch, else 1."""

    @staticmethod
    def of(rows: Rows, device: torch.device) -> "LoggedBatch":
        """Move a reader's rows to the device; on the CPU without a copy, except of candidates."""
        columns: dict[str, Any] = {field.name: getattr(rows, field.name) for field in fields(LoggedBatch)}
        for name, column in columns.items():
            if isinstance(column, Ragged):
                columns[name] = Candidates.of(column, device)
            else:
                tensor = to_device(column, device)
                columns[name] = ActionMask(tensor) if name.startswith("possible") else tensor
        return LoggedBatch(**columns)

    def rows(self, first: int, count: int) -> Self:
        """`count` consecutive rows."""
        columns: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, column in columns.items():
            tensor = isinstance(column, Tensor)
            columns[name] = column[first : first + count] if tensor else column.rows(first, count)
        return type(self)(**columns)

    def columns(self) -> dict[str, Tensor]:
        """All tensors by name; of candidates `<name>` and `<name>_offsets`."""
        found: dict[str, Tensor] = {}
        for field in fields(self):
            column: Tensor | Choices = getattr(self, field.name)
            found |= {field.name: column} if isinstance(column, Tensor) else column.tensors(field.name)
        return found
