"""Which environments can be saved in the middle of an episode, and go on as if nothing had happened."""

from typing import Any, Protocol, TypeGuard

import numpy as np

from lockstep.envs.vector import VectorEnv

UNSAVABLE = (
    "cannot be saved: a resumed run begins new episodes, and ends with other numbers than one that never stopped; give "
    "the class the methods state() and restore(state), as docs/environments.md shows"
)
"""What is said of environments that lack these methods."""


class SavableEnv(VectorEnv, Protocol):
    """A `VectorEnv` with the two methods that a resumed run needs to end with the same bits.

    They are optional. A run whose environments lack them can be resumed too, but begins new episodes.
    """

    def state(self) -> dict[str, Any]:
        """Everything that decides what comes next: positions, steps of the episode, generators.

        Returns:
            A tree of `dict` (text keys), `list`, `str`, `int`, `float`, `bool`, `None` and numpy arrays of bools,
            integers or floats. The arrays may be the environment's own: the caller copies them before the next step.
        """
        ...

    def restore(self, state: dict[str, Any]) -> np.ndarray | None:
        """Go on from `state()`: the next `step` gives the same bits as it would have given there.

        Args:
            state: from an environment made in the same way, with as many rows. This one was `reset` before, with
                whatever seeds.

        Returns:
            The observation [B, O] that belongs to the state, or None; nobody depends on it.
        """
        ...


def can_save(env: VectorEnv) -> TypeGuard[SavableEnv]:
    """Whether `env` can be saved and restored; never raises.

    Its class must have both methods. One that has them for some of its tasks only says which in an attribute
    `savable: bool`.
    """
    return has_both(env) and bool(getattr(env, "savable", True))


def has_both(thing: object) -> bool:
    """Whether the class of `thing` defines the methods `state` and `restore`.

    The instance is asked too: Gymnasium's tasks keep an array in an attribute called `state`.
    """
    return all(
        callable(getattr(type(thing), name, None)) and callable(getattr(thing, name, None))
        for name in ("state", "restore")
    )
