"""Rows of prepared data, gathered for learning.

Shapes: N rows, S numbers of a state, A actions, K numbers of an action, M metrics, m candidates of all rows together.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.data.columns import Index, Ragged, aligned

Float = NDArray[np.float32]


@dataclass(slots=True)
class Rows:
    """N logged decisions, and what followed each within a window of n steps.

    A window ends with its trajectory, or after n rewards. What is named `next_*` follows the last row of the window.
    """

    index: Index
    """[N]: which rows of the data."""
    state: Float
    """[N, S], as the network sees it."""
    action: NDArray[Any]
    """Discrete: [N] int64, index into `DatasetInfo.actions`. Parametric: [N, K] float32."""
    action_index: Index
    """[N]: which of the possible actions was taken; discrete: `action` itself."""
    reward: Float
    """[N], r_0 + gamma r_1 + ... over the window."""
    metrics: Float
    """[N, M], each summed as the reward is."""
    next_state: Float
    """[N, S]; zeros where nothing follows."""
    next_action: NDArray[Any]
    """As `action`; 0 where `has_next_action` is."""
    has_next_action: Float
    """[N], 1 where the log tells the next action."""
    possible_actions: Float | Ragged
    """Discrete: mask [N, A]. Parametric: lists of candidates."""
    possible_next_actions: Float | Ragged
    """As `possible_actions`; none where nothing follows."""
    not_terminal: Float
    """[N], 0 where the task ended within the window."""
    steps: Float
    """[N], rewards in the window, 1 to n."""
    time_diff: Float
    """[N], time from this decision to the next."""
    propensity: Float
    """[N], probability with which the logged policy took the action; NaN where the log does not tell."""
    weight: Float
    """[N], 0 for rows that only fill a batch up."""

    def __len__(self) -> int:
        return len(self.index)

    def between(self, start: int, stop: int) -> "Rows":
        """Rows `start` to `stop`: views of the same arrays, but aligned copies of what is multiplied by weights."""
        return Rows(**{item.name: _between(getattr(self, item.name), start, stop) for item in fields(self)})


def _between(value: Any, start: int, stop: int) -> Any:
    if isinstance(value, Ragged):
        return value.between(start, stop)
    return aligned(value[start:stop]) if value.ndim == 2 else value[start:stop]
