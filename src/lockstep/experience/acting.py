"""Actors: functions from observations to parameters of the action distribution, and the states of recurrent ones.

Shapes: B environments, O observation, P parameters of the action distribution, A numbers of an actor's state.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

Actor = Callable[[np.ndarray], np.ndarray]
"""Observations [..., B, *O] to parameters [..., B, P]."""


class RecurrentActor(Protocol):
    """The actor of a recurrent policy."""

    state_size: int
    """A."""

    def __call__(self, observation: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Observations [..., B, *O] and states [..., B, A] to parameters [..., B, P] and the states after this step."""
        ...


class ActorWithState:
    """An actor with the state of each environment; that of an actor without recurrent layers is empty.

    Args:
        actor: of a policy.
        shape: of the environments: [B], or [K, B] of several shards.

    Attributes:
        state: [*shape, A], 0 where no episode has begun.
        begins: bool [*shape]: episodes that begin with the next observation.
    """

    def __init__(self, actor: Actor | RecurrentActor, shape: tuple[int, ...]) -> None:
        self._actor = actor
        size: int = getattr(actor, "state_size", 0)
        self.is_recurrent = size > 0
        self.state = np.zeros((*shape, size), np.float32)
        self.begins = np.ones(shape, bool)

    def finite_state(self) -> np.ndarray:
        """The state before a rollout, with non-finite values, which follow from non-finite observations, set to 0."""
        if not np.isfinite(self.state).all():
            self.state = np.nan_to_num(self.state, nan=0.0, posinf=0.0, neginf=0.0)
        return self.state

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        """Observations [*shape, *O] to parameters [*shape, P]."""
        actor: Any = self._actor
        if not self.is_recurrent:
            return actor(observation)
        if self.begins.any():
            self.state = np.where(self.begins[..., None], np.float32(0.0), self.state)
        parameters, self.state = actor(observation, self.state)
        self.begins = np.zeros_like(self.begins)
        return parameters
