"""Ring buffers of observations, one per environment; of stacked images each frame is stored once.

Shapes: B environments, E of them, R rows of a ring, N rows anywhere, `*O` observation.
"""

import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError


class Rows(Protocol):
    """Storage of rows of one shape, all 0 at first: in the host's memory, or on a device."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows, then the shape of a row."""
        ...

    def write(self, index: np.ndarray, rows: np.ndarray) -> None:
        """Set the rows at `index` [E], without duplicates, to `rows` [E, *row]."""
        ...

    def read(self, index: np.ndarray, shape: tuple[int, ...], absent: np.ndarray | None = None) -> Any:
        """Observations of `shape` from the rows at `index`, of any shape; rows are 0 where `absent`, of the same shape.

        They are new memory, or what compiled code needs to read them.
        """
        ...

    def to_numpy(self) -> np.ndarray:
        """All rows; those in the host's memory without a copy."""
        ...

    def load(self, rows: np.ndarray) -> None:
        """Set all rows."""
        ...


MakeRows = Callable[[tuple[int, ...], np.dtype[Any]], Rows]
"""Makes rows of a shape and a dtype."""


class HostRows:
    """Rows in the host's memory, or in a file that is mapped into it."""

    def __init__(self, rows: np.ndarray) -> None:
        self._rows = rows
        self.shape = rows.shape

    def write(self, index: np.ndarray, rows: np.ndarray) -> None:
        """Set the rows at `index` [E] to `rows` [E, *row]."""
        self._rows[index] = rows

    def read(self, index: np.ndarray, shape: tuple[int, ...], absent: np.ndarray | None = None) -> np.ndarray:
        """Observations of `shape` from the rows at `index`; rows are 0 where `absent`."""
        rows = self._rows[index]
        if absent is not None and absent.any():
            rows[absent] = 0
        return rows.reshape(shape)

    def to_numpy(self) -> np.ndarray:
        """All rows, without a copy."""
        return self._rows

    def load(self, rows: np.ndarray) -> None:
        """Set all rows."""
        np.copyto(self._rows, rows)


class Frames:
    """B ring buffers of R observations each. Row r of environment b has the index b R + r.

    An observation of stacked frames (`EnvSpec.frames`) is stored as its newest frame, and restored from the rows before
    it. Frames from before an episode are 0.

    Args:
        spec: of the environments.
        num_envs: B.
        num_rows: R.
        path: of a file for the rows, mapped into memory; random letters follow its name. Its space is reserved, and
            freed when the process ends; it is removed from the directory at once.
        make_rows: makes the storage of the rows elsewhere, as on a device.

    Raises:
        ConfigError: the file cannot be made, or its disk is too full.
    """

    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int,
        num_rows: int,
        path: Path | None = None,
        make_rows: MakeRows | None = None,
    ) -> None:
        self.num_rows, self._depth, self._shape = num_rows, spec.frames, spec.observation_shape
        shape, self._dtype = (num_envs * num_rows, *_row_shape(spec)), np.dtype(spec.observation_dtype)
        self._rows = _host_rows(shape, self._dtype, path) if make_rows is None else make_rows(shape, self._dtype)
        self._newest = np.zeros((num_envs, *shape[1:]), self._dtype)
        """The newest row of each environment, also where the host cannot read the rows without waiting."""
        self.age = np.full(num_envs * num_rows, 0, np.uint8)
        """Of each row: how many rows before it belong to its stack."""
        self.written = np.zeros(num_envs, np.int64)
        """Rows that each environment has ever written."""
        self.env = np.arange(num_envs)
        self._first = self.env * num_rows
        self._back = np.arange(spec.frames - 1, -1, -1)

    @property
    def filled(self) -> int:
        """Rows in use of the fullest ring."""
        return int(min(self.written.max(), self.num_rows))

    def index(self, env: np.ndarray, back: int = 0) -> np.ndarray:
        """The rows that environments [E] wrote `back` rows before their newest."""
        return self._first[env] + (self.written[env] - (1 + back)) % self.num_rows

    def after(self, index: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """The rows `steps` after those at `index`, or before; shapes are broadcast."""
        slot = index % self.num_rows
        return index - slot + (slot + steps) % self.num_rows

    def append(self, env: np.ndarray, observation: np.ndarray, *, first: bool) -> np.ndarray:
        """Write observations [E, *O] as the newest row of environments [E], over the oldest one.

        Args:
            env: the environments.
            observation: of each.
            first: whether episodes begin; otherwise the row continues the one before.

        Returns:
            Indices of rows that are overwritten, or no longer have all of their stack.
        """
        if self._depth == 1:
            return self._append(env, observation, 0)
        newest = observation[:, -self._newest.shape[1] :]
        if not first:
            return self._append(env, newest, np.minimum(self.age[self.index(env)] + 1, self._depth - 1))
        older = observation.reshape(len(env), self._depth, -1)[:, :-1]
        if not older.any():
            return self._append(env, newest, 0)
        # A run resumed in mid-episode without its replay: the older frames of the stack become rows of their own.
        seen: np.ndarray = (older != 0).max(2)
        depth = np.where(seen.any(1), self._depth - 1 - seen.argmax(1), 0)
        lost: list[np.ndarray] = []
        for back in range(self._depth - 1, 0, -1):
            has = depth >= back
            frame = older[has, self._depth - 1 - back].reshape(-1, *newest.shape[1:])
            lost.append(self._append(env[has], frame, depth[has] - back))
        return np.unique(np.concatenate([*lost, self._append(env, newest, depth)]))

    def newest_is(self, observation: np.ndarray) -> bool:
        """Whether the newest rows are those of observations [B, *O]; of stacks the newest frame is compared."""
        newest = observation if self._depth == 1 else observation[:, -self._newest.shape[1] :]
        return bool((self.written > 0).all() and (self._newest == newest).all())

    def observation(self, index: np.ndarray) -> Any:
        """Observations [..., *O] at rows [...], where the rows are stored."""
        shape = (*index.shape, *self._shape)
        if self._depth == 1:
            return self._rows.read(index, shape)
        absent = self.age[index][..., None] < self._back
        return self._rows.read(self.after(index[..., None], -self._back), shape, absent)

    def to_numpy(self) -> np.ndarray:
        """All rows, for a checkpoint; those in the host's memory without a copy."""
        return self._rows.to_numpy()

    def fits(self, rows: np.ndarray) -> bool:
        """Whether an array has the shape and the dtype of all rows."""
        return (rows.shape, rows.dtype) == (self._rows.shape, self._dtype)

    def load(self, rows: np.ndarray) -> None:
        """Set all rows, after `written`."""
        self._rows.load(rows)
        np.copyto(self._newest, rows[self.index(self.env)])

    def close(self) -> None:
        """Free the rows."""
        self._rows = HostRows(np.empty((0, *self._rows.shape[1:]), self._dtype))

    def _append(self, env: np.ndarray, row: np.ndarray, age: np.ndarray | int) -> np.ndarray:
        self.written[env] += 1
        index = self.index(env)
        if self._depth == 1:
            lost = index
        else:
            near = self.after(index[:, None], self._back)
            lost = near[self.age[near] >= self._back]
        self._rows.write(index, row)
        self._newest[env] = row
        self.age[index] = age
        return lost


def ring_rows(spec: EnvSpec, num_envs: int, capacity: int, n_step: int) -> int:
    """R for `capacity` transitions of all B environments.

    Beside an environment's part it has room for what cannot be sampled at the ends of a full ring: the oldest rows
    lack frames of their stack, the newest their n-th next observation; and for a final observation, so that however
    short episodes are, one transition is always left.
    """
    return -(-capacity // num_envs) + n_step + spec.frames


def observation_bytes(spec: EnvSpec, num_rows: int) -> int:
    """Memory of rows of observations."""
    return num_rows * math.prod(_row_shape(spec)) * np.dtype(spec.observation_dtype).itemsize


def _row_shape(spec: EnvSpec) -> tuple[int, ...]:
    """Of one frame of a stack, or of the whole observation."""
    return (spec.observation_shape[0] // spec.frames, *spec.observation_shape[1:])


def _host_rows(shape: tuple[int, ...], dtype: np.dtype[Any], path: Path | None) -> HostRows:
    """Rows in memory, or in a file."""
    if path is not None:
        return HostRows(_mapped(path, shape, dtype))
    rows = np.empty(shape, dtype)
    rows.fill(0)  # takes the memory now, not in mid-training
    return HostRows(rows)


def _mapped(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """An array in a file, all 0."""
    size = math.prod(shape) * dtype.itemsize
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)  # runs may share the directory
        with open(number, "w+b") as file:
            os.unlink(name)  # the space is freed when the process ends, however it ends
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error now, not a signal in mid-training
            return np.asarray(np.memmap(file, dtype, "r+", shape=shape))
    except OSError as error:
        raise ConfigError(
            f"algorithm.replay_path={path.parent} cannot take {size / 1e6:.1f} MB ({error.strerror}); "
            "use another directory or a smaller algorithm.capacity"
        ) from None
