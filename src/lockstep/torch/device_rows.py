"""Observations of replay buffers in the memory of the rank's device (`replay_device`).

Which transitions are drawn is decided on the host; their observations are gathered, and stacked, on the device. A
gradient step then copies indices to the device, and no observation.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.algorithms.replay import ReplayConfig
from lockstep.envs.spec import EnvSpec
from lockstep.errors import ConfigError
from lockstep.experience.frames import observation_bytes, ring_rows
from lockstep.experience.memory import in_words
from lockstep.run import Run
from lockstep.session.shard_replays import ObservationStorage
from lockstep.torch.comm import Comm
from lockstep.torch.hardware import free_memory
from lockstep.torch.transfer import to_device

_SHARE = 0.5
"""The most that `replay_device=auto` takes of a GPU's free memory: optimizer, activations and graphs need the rest."""


class DeviceRows:
    """Rows on a device; see `lockstep.experience.frames.Rows`.

    Args:
        shape: number of rows, then the shape of a row.
        kind: of the numbers.
        device: where they are stored.

    Raises:
        ConfigError: the device lacks the memory.
    """

    def __init__(self, shape: tuple[int, ...], kind: np.dtype[Any], device: torch.device) -> None:
        self.shape = shape
        self._device = device
        dtype = torch.from_numpy(np.empty(0, kind)).dtype
        try:
            # One more row, which stays 0: reads of absent rows are directed to it.
            self._rows = torch.zeros((shape[0] + 1, *shape[1:]), dtype=dtype, device=device)
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"the replay buffer does not fit into the memory of {device} ({str(error).splitlines()[0]}); "
                "use --set replay_device=cpu or a smaller capacity"
            ) from None

    def write(self, index: np.ndarray, rows: np.ndarray) -> None:
        """Set the rows at `index` [E], without duplicates, to `rows` [E, *row]; the host does not wait."""
        where, values = (to_device(np.ascontiguousarray(array), self._device) for array in (index, rows))
        self._rows.index_copy_(0, where, values)

    def read(self, index: np.ndarray, absent: np.ndarray | None = None) -> Tensor:
        """The rows at `index`, of any shape; 0 where `absent`. The host does not wait."""
        present = index if absent is None else np.where(absent, self.shape[0], index)
        rows = self._rows.index_select(0, to_device(present.reshape(-1), self._device))
        return rows.view(*index.shape, *self.shape[1:])

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
    config, world, device = run.algorithm, comm.world, comm.device
    assert isinstance(config, ReplayConfig)
    free = free_memory(device)
    if free is None or config.replay_device == "cpu" or config.replay_path is not None:
        return ObservationStorage()
    num_envs, capacity = world.shard_size(run.num_envs, "num_envs"), world.shard_size(config.capacity, "capacity")
    rows = num_envs * ring_rows(spec, num_envs, capacity, config.n_step)
    # All ranks decide from the numbers of the rank that has the least room.
    every: Sequence[tuple[int, int]] = comm.gather_object(
        (len(world.shards) * observation_bytes(spec, rows), free), "replay device"
    )
    needed, free = min(every, key=lambda sizes: sizes[1] - sizes[0])
    share = _SHARE if config.replay_device == "auto" else 1.0
    if needed <= share * free:
        return ObservationStorage(
            partial(DeviceRows, device=device),
            f"{in_words(needed)} of observations in each GPU's memory, of {in_words(free)} that are free",
        )
    if config.replay_device == "auto":
        return ObservationStorage(
            None,
            f"in the host's memory, since {in_words(needed)} of observations are more than {_SHARE:.0%} of the "
            f"{in_words(free)} that are free on a GPU",
        )
    raise ConfigError(
        f"replay_device=cuda needs {in_words(needed)} for the observations of capacity={config.capacity}, and "
        f"{in_words(free)} are free on a GPU; use replay_device=auto, "
        f"or capacity={int(config.capacity * _SHARE * free / needed)} or less"
    )
