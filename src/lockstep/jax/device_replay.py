"""A replay buffer of every shard on its device, for environments that are there: pure functions for compiled code.

Each environment has a ring of transitions, all of the same length and age, so that a step of all environments is one
row. Unlike in `lockstep.experience.replay`, a transition has its own next observation.

Shapes: L shards of a device, R rows, T steps of a rollout, B environments of a shard, N transitions of a shard's part
of a minibatch, n steps of a return, O observation, D dimensions of an action.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.algorithms.replay import ReplayConfig
from lockstep.envs.spec import EnvSpec
from lockstep.jax.transitions import TransitionBatch

_GOES_ON, _TERMINATED, _TRUNCATED = range(3)


class TransitionRows(NamedTuple):
    """Transitions of a shard, [T, B, ...], or the rings of all shards of a device, [L, R, B, ...]."""

    observation: Array
    action: Array
    reward: Array
    next_observation: Array
    """After the action; the true last one of an episode where it ended."""
    end: Array
    """uint8: whether the episode went on, was terminated or was truncated."""


class DeviceReplay(NamedTuple):
    """The buffers of the shards of a device."""

    rings: TransitionRows
    written: Array
    """[L] int32: rows written since the start."""


def end_of(terminated: Array, truncated: Array) -> Array:
    """`TransitionRows.end` from flags."""
    return jnp.where(terminated, _TERMINATED, jnp.where(truncated, _TRUNCATED, _GOES_ON)).astype(jnp.uint8)


class ReplayRows:
    """The layout of the buffers, and what is written to them and drawn from them.

    Args:
        config: of the algorithm.
        spec: of the environments; actions are continuous.
        num_envs: of a shard (B).
        capacity: transitions of a shard, rounded up to a multiple of `num_envs`.
        num_drawn: transitions that a shard draws for a gradient step (N).

    Attributes:
        num_rows: R. The newest n - 1 rows wait for their return of n steps.
    """

    def __init__(self, config: ReplayConfig, spec: EnvSpec, num_envs: int, capacity: int, num_drawn: int) -> None:
        self._spec, self._num_envs, self._num_drawn, self._n = spec, num_envs, num_drawn, config.n_step
        self.num_rows = max(-(-capacity // num_envs) + config.n_step - 1, config.num_steps)
        self._discounts = (config.gamma ** np.arange(config.n_step + 1, dtype=np.float64)).astype(np.float32)

    @property
    def num_bytes(self) -> int:
        """Memory of a shard's buffer."""
        numbers = 2 * self._spec.observation_size + self._spec.action.width + 1
        return self.num_rows * self._num_envs * (4 * numbers + 1)

    def empty(self) -> DeviceReplay:
        """A shard's buffer before the first step, on the host."""
        rows = (self.num_rows, self._num_envs)
        before, after = np.zeros((2, *rows, self._spec.observation_size), np.float32)
        action = np.zeros((*rows, self._spec.action.width), np.float32)
        rings = TransitionRows(before, action, np.zeros(rows, np.float32), after, np.zeros(rows, np.uint8))  # type: ignore[arg-type]
        return DeviceReplay(rings, np.zeros((), np.int32))  # type: ignore[arg-type]

    def size(self, replay: DeviceReplay, slot: int) -> Array:
        """Transitions of a shard that can be drawn."""
        return self._startable(replay.written[slot]) * self._num_envs

    def _startable(self, written: Array) -> Array:
        return jnp.maximum(jnp.minimum(written, self.num_rows) - (self._n - 1), 0)

    def write(self, replay: DeviceReplay, slot: int, steps: TransitionRows, keep: Array) -> DeviceReplay:
        """Add a shard's rollout [T, B, ...], unless `keep` is false: the last episodes then count as truncated."""
        rings, written = replay
        length = len(steps.reward)
        place = (written[slot] + jnp.arange(length, dtype=jnp.int32)) % self.num_rows
        place = jnp.where(keep, place, self.num_rows)  # beyond the end: dropped
        last = (written[slot] - 1) % self.num_rows
        cut = ~keep & (rings.end[slot, last] == _GOES_ON)
        rings = rings._replace(end=rings.end.at[slot, last].set(jnp.where(cut, _TRUNCATED, rings.end[slot, last])))
        rings = jax.tree.map(lambda ring, new: ring.at[slot, place].set(new, mode="drop"), rings, steps)
        return DeviceReplay(rings, written.at[slot].add(jnp.where(keep, length, 0)))

    def draw(self, replay: DeviceReplay, slot: int, key: Array, num_actions: int) -> TransitionBatch:
        """A shard's part of a minibatch [N], drawn uniformly with replacement; without meaning while there is none.

        Args:
            replay: of all shards of the device.
            slot: of the shard.
            key: of this draw.
            num_actions: actions to draw for a transition, which needs noise for them.
        """
        rings, written = replay.rings, replay.written[slot]
        index_key, noise_key = jax.random.split(key)
        index = jax.random.randint(index_key, (self._num_drawn,), 0, jnp.maximum(self.size(replay, slot), 1))
        oldest = written - jnp.minimum(written, self.num_rows)
        row, env = oldest + index // self._num_envs, index % self._num_envs
        steps = (row[:, None] + jnp.arange(self._n, dtype=jnp.int32)[None]) % self.num_rows
        end, reward = rings.end[slot, steps, env[:, None]], rings.reward[slot, steps, env[:, None]]
        goes_on = jnp.cumprod((end[:, :-1] == _GOES_ON).astype(jnp.int32), 1)
        taken = jnp.concatenate([jnp.ones_like(index)[:, None], goes_on], 1)
        length = taken.sum(1)
        last = (row + length - 1) % self.num_rows
        terminated = rings.end[slot, last, env] == _TERMINATED
        discounts = jnp.asarray(self._discounts)
        noise = jax.random.normal(noise_key, (self._num_drawn, num_actions, self._spec.action.width), jnp.float32)
        return TransitionBatch(
            observation=rings.observation[slot, row % self.num_rows, env],
            action=rings.action[slot, row % self.num_rows, env],
            reward=(jnp.where(taken > 0, reward, 0.0) * discounts[None, :-1]).sum(1),
            next_observation=rings.next_observation[slot, last, env],
            discount=jnp.where(terminated, 0.0, discounts[length]),
            weight=jnp.ones(self._num_drawn, jnp.float32),
            noise=noise,
        )
