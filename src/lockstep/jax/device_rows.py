"""Observations of replay buffers in the memory of this process' devices (`replay_device`).

Which transitions are drawn is decided on the host. A gradient step is sent the indices of their rows; it gathers, and
stacks, the observations on the device.

Shapes: R rows of a shard's buffer, L shards of a device, N transitions of a shard's part of a minibatch, F frames of an
observation, `*O` observation.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lockstep.envs.spec import EnvSpec
from lockstep.jax import hardware
from lockstep.jax.comm import Comm
from lockstep.jax.transitions import SomePart
from lockstep.run import Run
from lockstep.session.replay_device import no_room, place_observations
from lockstep.session.shard_replays import ObservationStorage

_PENDING_ROWS = 1024
"""Rows that wait on the host at most until they are sent to the device together."""
_BLOCK = 64 << 20
"""Bytes that a checkpoint copies between host and device at a time."""


class DeviceMemory:
    """The rows of all shards of one device, one shard's after another's, each with a last row that stays 0.

    Args:
        shape: number of rows of a shard, then the shape of a row.
        dtype: of the numbers.
        device: where they are stored.
        shards: of the device (L).

    Attributes:
        rows: [L (R + 1), *row]; current after `flush`.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: Any, shards: int) -> None:
        try:
            with jax.default_device(device):
                self.rows: Array = jnp.zeros((shards * (shape[0] + 1), *shape[1:]), dtype).block_until_ready()
        except jax.errors.JaxRuntimeError as error:
            raise no_room(device, str(error)) from None
        self.rows = jax.device_put(self.rows, device)  # stays there whatever else is computed
        self._pending = list[tuple[np.ndarray, np.ndarray]]()
        self._num_pending = 0

    def write(self, index: np.ndarray, rows: np.ndarray) -> None:
        """Set the rows at `index` [E] to a copy of `rows` [E, *row], at the next `flush` at the latest."""
        self._pending.append((index, rows.copy()))
        self._num_pending += len(index)
        if self._num_pending >= _PENDING_ROWS:
            self.flush()

    def flush(self) -> None:
        """Send the rows that wait; the host does not wait for the copy."""
        if not self._pending:
            return
        index, rows = (np.concatenate(columns) for columns in zip(*self._pending, strict=True))
        self._pending.clear()
        self._num_pending = 0
        # A short ring may have come round: what was written last counts.
        newest = len(index) - 1 - np.unique(index[::-1], return_index=True)[1]
        # Programs for few lengths: the last rows are at indices behind the end, which are ignored.
        length = 1 << (len(newest) - 1).bit_length()
        padded = np.arange(len(self.rows), len(self.rows) + length, dtype=np.int32)
        padded[: len(newest)] = index[newest]
        values = np.zeros((length, *rows.shape[1:]), rows.dtype)
        values[: len(newest)] = rows[newest]
        self.rows = _written(self.rows, padded, values)


class DeviceRows:
    """One shard's rows; see `lockstep.experience.frames.Rows`. Observations are read in compiled code: `observed`.

    Args:
        memory: that of the shard's device.
        shape: number of rows, then the shape of a row.
        dtype: of the numbers.
        first: the shard's first row in `memory`.
    """

    def __init__(self, memory: DeviceMemory, shape: tuple[int, ...], dtype: np.dtype[Any], first: int) -> None:
        self.shape = shape
        self._memory, self._dtype, self._first = memory, dtype, first
        row_bytes = max(int(np.prod(shape[1:])) * dtype.itemsize, 1)
        self._block = max(min(_BLOCK // row_bytes, shape[0]), 1)

    def write(self, index: np.ndarray, rows: np.ndarray) -> None:
        """Set the rows at `index` [E] to `rows` [E, *row]."""
        self._memory.write(self._first + index, rows)

    def read(self, index: np.ndarray, shape: tuple[int, ...], absent: np.ndarray | None = None) -> np.ndarray:
        """Where the rows at `index` are on the device, int32 of the same shape; the row of zeros where `absent`."""
        present = index if absent is None else np.where(absent, self.shape[0], index)
        return (self._first + present).astype(np.int32)

    def to_numpy(self) -> np.ndarray:
        """A copy of all rows in the host's memory."""
        self._memory.flush()
        rows = np.empty(self.shape, self._dtype)
        for start in range(0, len(rows), self._block):
            start = min(start, len(rows) - self._block)  # the last block overlaps the one before
            rows[start : start + self._block] = _block(self._memory.rows, self._first + start, length=self._block)
        return rows

    def load(self, rows: np.ndarray) -> None:
        """Set all rows."""
        for start in range(0, len(rows), self._block):
            self.write(np.arange(start, min(start + self._block, len(rows))), rows[start : start + self._block])
            self._memory.flush()


class ReplayObservations:
    """The observations of the local replay buffers, where `replay_device` puts them.

    Making it is *collective* where ranks have GPUs.

    Args:
        run: the config, of an algorithm with a replay buffer.
        spec: of the environments.
        comm: the ranks.

    Attributes:
        storage: for `ShardReplays`; makes the rows of each local shard, in order.

    Raises:
        ConfigError: on all ranks, if `replay_device` is `cuda` and a rank's GPU has too little memory.
    """

    def __init__(self, run: Run, spec: EnvSpec, comm: Comm) -> None:
        self._spec, self._comm = spec, comm
        found = [hardware.free_memory(device) for device in comm.devices]
        free = min((num_bytes for num_bytes in found if num_bytes is not None), default=None)
        placement = place_observations(run, spec, comm, free, comm.num_slots)
        self.storage = ObservationStorage(self._make_rows if placement.on_device else None, placement.decision)
        self._memories = list[DeviceMemory]()
        self._num_made = 0

    def _make_rows(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceRows:
        """The rows of the next local shard."""
        device, slot = self._comm.places[self._num_made]
        self._num_made += 1
        if device == len(self._memories):
            self._memories.append(DeviceMemory(shape, dtype, self._comm.devices[device], self._comm.num_slots))
        return DeviceRows(self._memories[device], shape, dtype, slot * (shape[0] + 1))

    def rows(self) -> Array | None:
        """The current rows of all devices, [devices L (R + 1), *row], as the indices count them; None on the host."""
        for memory in self._memories:
            memory.flush()
        return self._comm.join([memory.rows for memory in self._memories]) if self._memories else None

    def blank(self, part: SomePart) -> SomePart:
        """A part of a minibatch, made for the host, as it is drawn: with indices of rows on the device."""
        if self.storage.make_rows is None:
            return part
        shape = part.batch.reward.shape + ((self._spec.frames,) if self._spec.frames > 1 else ())
        index = np.zeros(shape, np.int32)
        return part._replace(batch=part.batch._replace(observation=index, next_observation=index))

    def on_host(self, parts: Sequence[SomePart]) -> Sequence[SomePart]:
        """Each local shard's part of a minibatch with its observations [N, *O] in place of indices, for an error.

        Of a minibatch that is no longer kept there are no parts.
        """
        if not self._memories or not parts:
            return parts
        devices = [self._memories[device].rows for device, _ in self._comm.places]
        found = [observed(part, rows, self._spec) for part, rows in zip(parts, devices, strict=True)]
        return [jax.tree.map(np.asarray, part) for part in found]


def observed(part: SomePart, rows: Array | None, spec: EnvSpec) -> SomePart:
    """A shard's part of a minibatch with its observations [N, *O]; without `rows` on the device it has them already.

    Args:
        part: with indices [N] or [N, F] of `rows` as observations.
        rows: all rows of the device.
        spec: of the environments.
    """
    if rows is None:
        return part

    def gather(index: Any) -> Array:
        stacks = rows.at[index].get(mode="promise_in_bounds")
        return stacks.reshape(len(index), *spec.observation_shape)

    batch = part.batch
    batch = batch._replace(observation=gather(batch.observation), next_observation=gather(batch.next_observation))
    return part._replace(batch=batch)


@partial(jax.jit, donate_argnums=0)
def _written(rows: Array, index: Array, values: Array) -> Array:
    """The rows in their own buffer, with `values` at `index`, which is ignored where it is behind the end."""
    return rows.at[index].set(values, mode="drop", unique_indices=True)


@partial(jax.jit, static_argnames="length")
def _block(rows: Array, start: int, length: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(rows, start, length)
