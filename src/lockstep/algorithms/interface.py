"""What the settings class of every algorithm that learns in environments offers; `all.py` lists the classes."""

from collections.abc import Mapping
from typing import ClassVar, Protocol

LEFT_TO_LOOPS: Mapping[str, tuple[object, ...]] = {
    "precision": ("float32",),
    "compile": (False,),
    "capture": (None, False),
    "non_finite": ("stop",),
}
"""Settings of every run that only the code of an algorithm can follow, and the values for which it need do nothing. A
run refuses other values unless the algorithm's `FOLLOWS` names the setting: none is silently ignored."""
ALL_SETTINGS = frozenset(LEFT_TO_LOOPS)
"""The `FOLLOWS` of an algorithm that follows all of them."""


class AlgorithmSettings(Protocol):
    """The settings of an algorithm: a frozen dataclass whose counts are global, summed over all ranks.

    Its module, `algorithms/NAME.py`, also has `METRICS`: the names of the algorithm's metrics.
    """

    FRAMEWORKS: ClassVar[frozenset[str]]
    """The values of `ml_framework` that have the algorithm: `lockstep/FRAMEWORK/NAME.py` has its `train`."""
    FOLLOWS: ClassVar[frozenset[str]]
    """The settings in `LEFT_TO_LOOPS` that its code follows, in each framework."""
    SAVED: ClassVar[tuple[str, ...]]
    """The settings that policy files hold: those that define the networks, and how the policy acts."""

    @property
    def num_steps(self) -> int:
        """Steps of each environment between two updates (T)."""
        ...

    @property
    def learning_rate(self) -> float:
        """The step size of the optimizer, at the start; a run shows it in its first line."""
        ...

    def minibatch_rows(self, shard_envs: int, num_shards: int) -> int:
        """Transitions of one shard's part of a minibatch (N).

        Args:
            shard_envs: environments of a shard.
            num_shards: of the run.

        Raises:
            ConfigError: counts do not divide among the shards.
        """
        ...

    def gradient_steps(self, num_envs: int) -> float:
        """Gradient steps per update (a rollout and the learning after it), on average.

        Args:
            num_envs: environments, all ranks together.
        """
        ...
