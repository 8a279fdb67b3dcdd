"""The protocol of environments written in JAX: three pure functions of one environment.

Callers map them over the environments of a shard with `jax.vmap`.
"""

from typing import Any, Protocol

from jax import Array

from lockstep.envs.spec import EnvSpec

State = Any
"""A pytree of arrays with constant shapes and numpy-compatible types, because checkpoints save it."""
Transition = tuple[State, Array, Array, Array, Array]
"""State, observation, reward, terminated, truncated; see `DeviceEnv.step`."""


class DeviceEnv(Protocol):
    """One stateless environment in JAX, without autoreset.

    A user-defined class has the attribute `on_device = True`, is constructed as `Class(**kwargs)`, and is named as task
    `module:Class`.
    """

    spec: EnvSpec
    """Sizes and conventions, with `autoreset="same_step"` and `separately_seedable=True` (implemented by callers)."""

    def reset(self, key: Array) -> State:
        """The initial state of an episode, drawn with `key`."""
        ...

    def observe(self, state: State) -> Array:
        """The observation of a state: float32 `[O]`, or bytes `[C, H, W]` where the spec has an image."""
        ...

    def step(self, state: State, action: Array, key: Array) -> Transition:
        """One step.

        Args:
            state: before the step.
            action: int32 `[]` (discrete), int32 `[K]` (multi_discrete) or float32 `[D]` (continuous, in bounds).
            key: of the step's randomness.

        Returns:
            The next state and its observation, also where the episode ends; reward float32 `[]`; terminated and
            truncated, bools `[]`.
        """
        ...
