"""Environments on another framework's arrays, whose rollouts the learner reads through DLPack.

DLPack is the exchange format of array libraries: an importer may use the exporter's memory, on the CPU or on a GPU,
without a copy, and may read it later, as its computations are asynchronous. An exported array is never written again.

Shapes: T steps, B environments of a shard, O and C numbers of the policy's and of the critic's own observation.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from lockstep.envs.spec import EnvSpec

CPU = 1
"""Number of the kind of device that the host's memory has in DLPack."""


class DLPackArray(Protocol):
    """An array of any framework."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        """The array's memory as a capsule. A GPU's `stream` that is given waits for the array."""
        ...

    def __dlpack_device__(self) -> tuple[int, int]:
        """Kind and number of the device."""
        ...


class DLPackRollout(NamedTuple):
    """One shard's consecutive steps, time-major. What episodes are counted from is on the host."""

    observation: DLPackArray
    """[T + 1, B, O]; the last row is where the rollout stopped. [T + 1, B, O + C] if the critic has its own."""
    reward: np.ndarray
    """[T, B]."""
    terminated: np.ndarray
    """[T, B] bool."""
    truncated: np.ndarray
    """[T, B] bool."""
    final: Sequence[tuple[np.ndarray, np.ndarray, DLPackArray]]
    """`(t, b, observation)` of truncated episodes whose next observation already belongs to the next episode. Steps
    [E], environments [E], and B rows, of which the first E are used: shapes do not depend on data."""
    is_finite: bool
    """Whether every number is."""


class DLPackEnv(Protocol):
    """The environments of one shard, which store their own rollout."""

    spec: EnvSpec
    """Sizes and conventions of one environment."""
    num_envs: int
    """B."""
    savable: bool
    """Whether `state` and `restore` work."""

    def reset(self, seeds: Sequence[int]) -> None:
        """Start new episodes everywhere; `seeds` are as in `VectorEnv.reset`."""
        ...

    def begin(self, num_steps: int) -> None:
        """Begin a rollout of `num_steps` steps with the last observation."""
        ...

    def observation(self) -> DLPackArray:
        """The last observation [B, O], or [B, O + C]."""
        ...

    def step(self, action: DLPackArray) -> None:
        """Step every environment once; copies `action`, and stores the results."""
        ...

    def ended(self) -> np.ndarray:
        """Bool [B]: where the last step ended an episode; waits for the device."""
        ...

    def finish(self) -> DLPackRollout:
        """The rollout of all steps since `begin`; waits for the device."""
        ...

    def state(self) -> dict[str, Any]:
        """The complete state of the environments, on the host."""
        ...

    def restore(self, state: dict[str, Any], observation: np.ndarray) -> None:
        """Load `state()`, and the `observation()` that belonged to it."""
        ...

    def close(self) -> None:
        """Free all resources; may be called twice."""
        ...
