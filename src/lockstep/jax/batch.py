"""What PPO learns from: transitions with what the policy that acted made of them.

Shapes: T steps of a rollout, B environments of a shard, O observation, N transitions of a part of a minibatch.
"""

from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jax import Array

from lockstep.envs.spec import EnvSpec


class Steps(NamedTuple):
    """A shard's rollout as the policy saw it, time-major; each leaf [T, B, ...]."""

    observation: Array
    """[T + 1, B, O], normalized; the last row is where the rollout stopped."""
    action: Array
    reward: Array
    """Scaled by the normalizer of returns, if there is one."""
    terminated: Array
    """1 where the task ended the episode, as a float, like `ended`."""
    ended: Array
    """1 where the episode ended, terminated or truncated."""
    weight: Array
    final_value: Array
    """Value of the true last observation of an episode, where `observation[t + 1]` belongs to the next one."""
    is_final: Array
    """1 where `final_value` counts."""
    parameters: Array | None = None
    """[T, B, ...] of the action distribution, where they are known."""


class Batch(NamedTuple):
    """Transitions of one shard, [T * B] or a part [N] of them."""

    observation: Array
    action: Array
    log_prob: Array
    """log pi_old(a|s) of the policy that acted."""
    value: Array
    advantage: Array
    target: Array
    """What the value should have been: advantage + value."""
    weight: Array
    """0 for rows in which an environment only reset itself, 1 otherwise."""

    @staticmethod
    def blank(spec: EnvSpec, rows: int) -> "Batch":
        """Rows of zeros, of weight 0, on the host."""
        action = spec.action
        shape = (rows,) if action.kind == "discrete" else (rows, action.width)
        kind = np.float32 if action.kind == "continuous" else np.int32
        seen = np.uint8 if spec.image else np.float32
        columns = (np.zeros((rows, *spec.observation_shape), seen), np.zeros(shape, kind), *np.zeros((5, rows), "f4"))
        return Batch(*cast(Any, columns))

    def at(self, order: Array) -> "Batch":
        """The rows at `order` [N], which are all there, in that order."""
        return jax.tree.map(lambda column: column.at[order].get(mode="promise_in_bounds"), self)


def slots(stacked: Any, count: int) -> list[Any]:
    """Of arrays with a leading axis of `count` slots, the pytree of each."""
    return [jax.tree.map(lambda leaf, slot=slot: leaf[slot], stacked) for slot in range(count)]
