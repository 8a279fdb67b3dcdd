"""Description of prepared data."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo:
    """Kind, counts and names of prepared data."""

    kind: Literal["discrete", "parametric", "continuous"]
    """Whether an action is a name, one of a list of candidates described by features, or any numbers within bounds."""
    num_rows: int
    """Logged decisions."""
    num_trajectories: int
    state_features: tuple[str, ...]
    """Ids of the raw features of a state, in the order of their columns."""
    state_size: int
    """Numbers of a normalized state (S)."""
    actions: tuple[str, ...] = ()
    """Discrete: their names (A)."""
    action_features: tuple[str, ...] = ()
    """Parametric and continuous: ids of the raw features of an action."""
    action_size: int = 0
    """Parametric and continuous: numbers of a normalized action (K)."""
    candidates: tuple[dict[str, float], ...] = ()
    """Parametric: the candidates of every row, if all rows have the same list, in the order of the log."""
    metrics: tuple[str, ...] = ()
    """Names of the metrics besides the reward (M)."""
    has_propensity: bool = False
    """Whether any row has the probability of its action, or the density of a continuous one."""
    has_next_action: bool = False
    has_possible_actions: bool = False
    """Whether any row has its possible actions."""
    has_impossible_actions: bool | None = None
    """Discrete: whether any row excludes an action. None: data of an older version, which did not record it."""
    reward_mean: float = 0.0
    digest: str = ""
    """Of keys and raw contents of all rows, independent of their order."""
    keys_digest: str = ""
    """Of the keys alone: equal for logs of the same decisions that differ in their contents. For people; no code reads
    it."""
    rules: dict[str, Any] = field(default_factory=dict[str, Any])
    """Options and counts of the preparation: terminal rows, time limits and so on."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of a state (S), actions (A) or numbers of an action (K), metrics (M)."""
        return self.state_size, len(self.actions) if self.kind == "discrete" else self.action_size, len(self.metrics)

    @property
    def restricts_actions(self) -> bool:
        """Discrete: whether a policy needs the possible actions to choose from."""
        known = self.has_impossible_actions
        return self.kind == "discrete" and (self.has_possible_actions if known is None else known)

    @property
    def actions_given(self) -> bool:
        """Discrete: whether the user gave `actions`, in the order of their indices; otherwise they are sorted."""
        options: dict[str, Any] = self.rules.get("options") or {}
        return options.get("actions") is not None and bool(options.get("actions_given", True))

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for `dataset.json` and for policy files; the inverse of `from_dict`."""
        return asdict(self)

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "DatasetInfo":
        """The inverse of `to_dict`. Raises `ValueError` if a field is missing or of the wrong type."""
        return msgspec.convert(plain, DatasetInfo, strict=False)
