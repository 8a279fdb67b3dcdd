"""The protocol of environments that can be saved and restored in the middle of an episode."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard

import numpy as np

from lockstep.envs.spec import EnvSpec
from lockstep.envs.vector import Step, VectorEnv

UNSAVABLE = (
    "cannot be saved: a resumed run begins new episodes, and ends with other numbers than one that never stopped"
)
"""The warning for environments that lack these methods."""


class SavableEnv(VectorEnv, Protocol):
    """A `VectorEnv` with the two methods that a resumed run needs to end with the same bits.

    They are optional: without them a resumed run starts new episodes.
    """

    def state(self) -> dict[str, Any]:
        """The complete state: positions, steps of the episode, generators.

        Returns:
            A tree of `dict` (text keys), `list`, `str`, `int`, `float`, `bool`, `None` and numpy arrays of bools,
            integers or floats. The arrays need not be copies: the caller copies them before the next step.
        """
        ...

    def restore(self, state: dict[str, Any]) -> np.ndarray | None:
        """Load `state()`: the next `step` returns the same bits as it would have in the saved environment.

        Args:
            state: of an environment with the same arguments and number of rows. This one has been `reset` before, with
                any seeds.

        Returns:
            The observation [B, O] of the state, or None; it is not used.
        """
        ...


def can_save(env: VectorEnv) -> TypeGuard[SavableEnv]:
    """Whether `env` can be saved and restored; never raises.

    Its class must have both methods. A class that supports them for some tasks only sets the attribute `savable: bool`.
    """
    return has_state_methods(env) and bool(getattr(env, "savable", True))


class EnvWrapper(ABC):
    """A `VectorEnv` around another. Other attributes, such as `render`, are those of the environment."""

    def __init__(self, env: VectorEnv, spec: EnvSpec) -> None:
        self.spec = spec
        self.num_envs = env.num_envs
        self.savable = can_save(env)
        self._env = env

    @abstractmethod
    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Start new episodes everywhere."""

    @abstractmethod
    def step(self, action: np.ndarray) -> Step:
        """Step every environment once."""

    def state(self) -> dict[str, Any]:
        """The complete state."""
        assert can_save(self._env)
        return self._env.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Load `state()`."""
        assert can_save(self._env)
        self._env.restore(state)

    def close(self) -> None:
        """Close the environments."""
        self._env.close()

    def __getattr__(self, name: str) -> Any:
        """Attributes of the environment."""
        return getattr(self._env, name)


def has_state_methods(thing: object) -> bool:
    """Whether the class of `thing` defines the methods `state` and `restore`.

    The instance is checked too, because Gymnasium's tasks have an array attribute called `state`.
    """
    return all(
        callable(getattr(type(thing), name, None)) and callable(getattr(thing, name, None))
        for name in ("state", "restore")
    )
