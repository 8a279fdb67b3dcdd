"""The data of a PPO update: a shard's rollout, and transitions with old values, log-probabilities and advantages.

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
    """[T + 1, B, O], normalized; the last row is the observation after the rollout."""
    action: Array
    reward: Array
    """Scaled by the return normalizer, if there is one."""
    terminated: Array
    """1 where the task ended the episode, as a float, like `ended`."""
    ended: Array
    """1 where the episode ended, terminated or truncated."""
    weight: Array
    final_value: Array
    """Value of the true last observation of an episode whose `observation[t + 1]` is the next episode's first."""
    is_final: Array
    """1 where `final_value` replaces V(observation[t + 1])."""
    parameters: Array | None = None
    """[T, B, ...] of the action distribution, if already computed."""


class Batch(NamedTuple):
    """Transitions of one shard, [T * B] or a part [N] of them."""

    observation: Array
    action: Array
    log_prob: Array
    """log pi_old(a|s) of the policy that acted."""
    value: Array
    advantage: Array
    target: Array
    """Value target: advantage + value."""
    weight: Array
    """0 for rows in which the environment was only reset, 1 otherwise."""

    @staticmethod
    def blank(spec: EnvSpec, rows: int) -> "Batch":
        """Rows of zeros and weight 0, on the host."""
        action = spec.action
        shape = (rows,) if action.kind == "discrete" else (rows, action.width)
        kind = np.float32 if action.kind == "continuous" else np.int32
        seen = np.uint8 if spec.image else np.float32
        columns = (np.zeros((rows, *spec.observation_shape), seen), np.zeros(shape, kind), *np.zeros((5, rows), "f4"))
        return Batch(*cast(Any, columns))

    def at(self, order: Array) -> "Batch":
        """The rows at the valid indices `order` [N]."""
        return jax.tree.map(lambda column: column.at[order].get(mode="promise_in_bounds"), self)


def slots(stacked: Any, count: int) -> list[Any]:
    """The pytree of each slot, from arrays with a leading axis of `count` slots."""
    return [jax.tree.map(lambda leaf, slot=slot: leaf[slot], stacked) for slot in range(count)]
