"""The data of a PPO update: a shard's rollout, and transitions with old values, log-probabilities and advantages.

Shapes: T steps of a rollout, B environments of a shard, O and C numbers of the policy's and of the critic's
observation, N transitions of a part of a minibatch, S numbers of a recurrent policy's state.
"""

from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jax import Array

from lockstep.envs.spec import EnvSpec
from lockstep.jax.recurrent import Sequences


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
    state: Array | None = None
    """[B, S]: of a recurrent policy, before the first step."""
    begins: Array | None = None
    """[T + 1, B]: 1 where an episode begins; for a recurrent policy."""
    final: Array | None = None
    """[T, B, O], normalized: the true last observation where `is_final`, for a recurrent policy, which values it with
    the state before it."""
    mirrored_observation: Array | None = None
    """[T, B, M - 1, O], normalized: copies of `observation` by `symmetry`."""
    mirrored_action: Array | None = None
    """[T, B, M - 1, ...]: of these copies."""
    mirrored_critic: Array | None = None
    """[T, B, M - 1, C], normalized: of these copies, if the critic has its own observation."""
    critic: Array | None = None
    """[T + 1, B, C]: the critic's own observation, normalized, if there is one."""
    final_critic: Array | None = None
    """[T, B, C]: of the critic's own, as `final`."""


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
    state: Array | None = None
    """[N, S]: of a recurrent policy, before this row."""
    begins: Array | None = None
    """1 where an episode begins, for a recurrent policy."""
    mirrored_observation: Array | None = None
    """[N, M - 1, O], normalized: copies of the row by `symmetry`."""
    mirrored_action: Array | None = None
    """[N, M - 1, ...]: of these copies."""
    mirrored_critic: Array | None = None
    """[N, M - 1, C], normalized: of these copies, if the critic has its own observation."""
    critic: Array | None = None
    """[N, C]: the critic's own observation, if there is one."""

    def sequences(self, length: int) -> Sequences | None:
        """The sequences of this length that the rows form, time-major; None for a policy without recurrent layers."""
        if self.state is None or self.begins is None:
            return None
        begins = self.begins.reshape(length, -1)
        return Sequences(self.state[: begins.shape[1]], begins)

    @staticmethod
    def blank(spec: EnvSpec, rows: int) -> "Batch":
        """Rows of zeros and weight 0, on the host."""
        action = spec.action
        shape = (rows,) if action.kind == "discrete" else (rows, action.width)
        dtype = np.float32 if action.kind == "continuous" else np.int32
        seen = np.uint8 if spec.image else np.float32
        columns = (np.zeros((rows, *spec.observation_shape), seen), np.zeros(shape, dtype), *np.zeros((5, rows), "f4"))
        return Batch(*cast(Any, columns))

    def at(self, order: Array) -> "Batch":
        """The rows at the valid indices `order` [N]."""
        return jax.tree.map(lambda column: column.at[order].get(mode="promise_in_bounds"), self)


def slots(stacked: Any, count: int) -> list[Any]:
    """The pytree of each slot, from arrays with a leading axis of `count` slots."""
    return [jax.tree.map(lambda leaf, slot=slot: leaf[slot], stacked) for slot in range(count)]
