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
    """N logged decisions with their n-step windows.

    A window ends with its trajectory, or after n rewards. `next_*` fields follow the last row of the window.
    """

    index: Index
    """[N]: row numbers."""
    state: Float
    """[N, S], normalized."""
    action: NDArray[Any]
    """Discrete: [N] int64, index into `DatasetInfo.actions`. Parametric and continuous: [N, K] float32."""
    action_index: Index
    """[N]: index of the action among the possible ones; discrete: `action` itself; continuous: 0."""
    reward: Float
    """[N], r_0 + gamma r_1 + ... over the window."""
    metrics: Float
    """[N, M], discounted sums like the reward."""
    next_state: Float
    """[N, S]; zeros where nothing follows."""
    next_action: NDArray[Any]
    """As `action`; 0 where `has_next_action` is 0."""
    has_next_action: Float
    """[N], 1 where the next action is known."""
    possible_actions: Float | Ragged
    """Discrete: mask [N, A]. Parametric: lists of candidates. Continuous: [N, 0]."""
    possible_next_actions: Float | Ragged
    """As `possible_actions`; none where nothing follows."""
    not_terminal: Float
    """[N], 0 where the task ended within the window."""
    steps: Float
    """[N], rewards in the window, 1 to n."""
    time_diff: Float
    """[N], time from this decision to the next."""
    propensity: NDArray[Any]
    """[N], probability of the action under the logging policy; NaN where unknown. Continuous: [N] float64, the
    logarithm of the density."""
    weight: Float
    """[N], 0 for padding."""

    def __len__(self) -> int:
        return len(self.index)

    def between(self, start: int, stop: int) -> "Rows":
        """Rows `start` to `stop`: views of the same arrays; matrices are aligned copies if needed."""
        return Rows(**{item.name: _between(getattr(self, item.name), start, stop) for item in fields(self)})


def _between(value: Any, start: int, stop: int) -> Any:
    if isinstance(value, Ragged):
        return value.between(start, stop)
    return aligned(value[start:stop]) if value.ndim == 2 else value[start:stop]
