"""Observations of replay buffers in the memory of the rank's device (`replay_device`).

Which transitions are drawn is decided on the host; their observations are gathered, and stacked, on the device. A
gradient step then copies indices to the device, and no observation.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.envs.spec import EnvSpec
from lockstep.run import Run
from lockstep.session.replay_device import no_room, place_observations
from lockstep.session.shard_replays import ObservationStorage
from lockstep.torch.comm import Comm
from lockstep.torch.hardware import free_memory
from lockstep.torch.transfer import to_device


class DeviceRows:
    """Rows on a device; see `lockstep.experience.frames.Rows`.

    Args:
        shape: number of rows, then the shape of a row.
        dtype: of the numbers.
        device: where they are stored.

    Raises:
        ConfigError: the device lacks the memory.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: torch.device) -> None:
        self.shape = shape
        self._device = device
        torch_dtype = torch.from_numpy(np.empty(0, dtype)).dtype
        try:
            # One more row, which stays 0: reads of absent rows are directed to it.
            self._rows = torch.zeros((shape[0] + 1, *shape[1:]), dtype=torch_dtype, device=device)
        except torch.OutOfMemoryError as error:
            raise no_room(device, str(error)) from None

    def write(self, index: np.ndarray, rows: np.ndarray) -> None:
        """Set the rows at `index` [E], without duplicates, to `rows` [E, *row]; the host does not wait."""
        where, values = (to_device(np.ascontiguousarray(array), self._device) for array in (index, rows))
        self._rows.index_copy_(0, where, values)

    def read(self, index: np.ndarray, shape: tuple[int, ...], absent: np.ndarray | None = None) -> Tensor:
        """Observations of `shape` from the rows at `index`; rows are 0 where `absent`. The host does not wait."""
        present = index if absent is None else np.where(absent, self.shape[0], index)
        rows = self._rows.index_select(0, to_device(present.reshape(-1), self._device))
        return rows.view(shape)

    def to_numpy(self) -> np.ndarray:
        """A copy of all rows in the host's memory."""
        return self._rows[:-1].cpu().numpy()

    def load(self, rows: np.ndarray) -> None:
        """Set all rows."""
        self._rows[:-1].copy_(torch.from_numpy(rows))


def observation_storage(run: Run, spec: EnvSpec, comm: Comm) -> ObservationStorage:
    """Decide where observations are stored, for all ranks alike; *collective* where ranks have GPUs.

    Raises:
        ConfigError: on all ranks, if `replay_device` is `cuda` and a rank's GPU has too little memory.
    """
    placement = place_observations(run, spec, comm, free_memory(comm.device), len(comm.world.shards))
    make_rows = partial(DeviceRows, device=comm.device) if placement.on_device else None
    return ObservationStorage(make_rows, placement.decision)
