"""What an environment on the device is: three pure functions of one environment.

They are given single numbers and vectors; who calls them maps them over the environments of a shard (`jax.vmap`).
"""

from typing import Any, Protocol

from jax import Array

from lockstep.envs.spec import EnvSpec

State = Any
"""A pytree of arrays, of shapes that never change. No object that numpy cannot hold: it goes into checkpoints."""
Transition = tuple[State, Array, Array, Array, Array]
"""State, observation, reward, terminated, truncated; see `DeviceEnv.step`."""


class DeviceEnv(Protocol):
    """One environment in JAX, without a memory of its own and without a reset at an episode's end.

    Write a class of your own with the attribute `on_device = True`, made by `Class(**kwargs)`, and name it as task:
    `module:Class`.
    """

    spec: EnvSpec
    """What it looks like; `autoreset="same_step"` and `separately_seedable=True`, which the caller sees to."""

    def reset(self, key: Array) -> State:
        """The state in which an episode begins; `key` decides which."""
        ...

    def observe(self, state: State) -> Array:
        """What is seen of a state: float32 `[O]`, or bytes `[C, H, W]` where the spec has an image."""
        ...

    def step(self, state: State, action: Array, key: Array) -> Transition:
        """One step.

        Args:
            state: in which the action is taken.
            action: int32 `[]` (discrete), int32 `[K]` (multi_discrete) or float32 `[D]` (continuous, in bounds).
            key: for what is random in a step.

        Returns:
            The next state and what is seen of it, also where the episode ends; reward float32 `[]`; bools `[]`:
            whether the task ended the episode, and whether it was cut.
        """
        ...
