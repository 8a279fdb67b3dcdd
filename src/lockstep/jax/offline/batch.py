"""Logged rows of named or continuous actions, as pytrees of arrays.

Shapes: N rows of a shard's part of a minibatch, S numbers of a state, A named actions, D dimensions of a continuous
action, M metrics.
"""

from typing import Any, NamedTuple

import numpy as np

from lockstep.data.rows import Rows


class LoggedBatch(NamedTuple):
    """Logged rows of one shard [N]; numpy arrays, or JAX's inside compiled code.

    Fields named `next_*` belong to the state after the last of the summed rewards.
    """

    state: Any
    """[N, S]."""
    action: Any
    """The logged action: its index [N], or its numbers scaled to [-1, 1] [N, D]."""
    reward: Any
    """sum_k gamma^k r_k over the rewards before the target bootstraps."""
    metrics: Any
    """The same sum for each metric [N, M]."""
    next_state: Any
    """[N, S]; zeros after the end of a trajectory."""
    next_action: Any
    """As `action`; zeros after the end, or if it is unknown."""
    has_next_action: Any
    """0 if the log does not contain the next action, else 1."""
    possible_actions: Any
    """0 where an action is impossible [N, A]; of continuous actions [N, 0]."""
    possible_next_actions: Any
    """As `possible_actions`; none after the end of a trajectory."""
    not_terminal: Any
    """0 if the trajectory ended within those rewards, else 1."""
    steps: Any
    """The number of those rewards."""
    time_diff: Any
    weight: Any
    """0 for padding rows of the last minibatch, else 1."""

    @staticmethod
    def of(rows: Rows) -> "LoggedBatch":
        """A reader's rows; JAX has no 64-bit indices."""
        columns = {name: getattr(rows, name) for name in LoggedBatch._fields}
        for name in ("action", "next_action"):
            if columns[name].dtype == np.int64:
                columns[name] = columns[name].astype(np.int32)
        return LoggedBatch(**columns)


class Part(NamedTuple):
    """One shard's part of a minibatch; a pytree."""

    batch: LoggedBatch
    single: LoggedBatch | None = None
    """The same rows with one reward each, for the models of the policy's value; None: `batch` is that."""
    noise: Any = None
    """Standard normal numbers [N, D] of the actions to draw, if there are any."""

    @property
    def single_step(self) -> LoggedBatch:
        """The rows with one reward each."""
        return self.batch if self.single is None else self.single
