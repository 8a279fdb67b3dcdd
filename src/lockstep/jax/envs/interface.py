"""The protocol of environments written in JAX: three pure functions of one environment.

Callers map them over the environments of a shard with `jax.vmap`.
"""

from typing import Any, NamedTuple, Protocol

from jax import Array

from lockstep.envs.spec import EnvSpec

State = Any
"""A pytree of arrays with constant shapes and numpy-compatible types, because checkpoints save it."""


class Observation(NamedTuple):
    """What the networks receive, where the value network has an observation of its own."""

    policy: Array
    """float32 `[O]`, or bytes `[C, H, W]` where the spec has an image."""
    critic: Array | None = None
    """float32 `[critic_size]`, the value network's own ("privileged") observation."""


Seen = Array | Observation
"""`Observation` where the spec has a `critic_size`, else the policy's array alone."""
Transition = tuple[State, Seen, Array, Array, Array]
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

    def observe(self, state: State) -> Seen:
        """The observation of a state: float32 `[O]`, or bytes `[C, H, W]` where the spec has an image.

        Where the spec has a `critic_size`, an `Observation` with that of the value network.
        """
        ...

    def step(self, state: State, action: Array, key: Array) -> Transition:
        """One step.

        Args:
            state: before the step.
            action: int32 `[]` (discrete), int32 `[K]` (multi_discrete) or float32 `[D]` (continuous, in bounds).
                Choices are counted from 0.
            key: of the step's randomness.

        Returns:
            The next state and its observation, also where the episode ends; reward float32 `[]`; terminated and
            truncated, bools `[]`.
        """
        ...
