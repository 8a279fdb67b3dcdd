"""What outlives an update of a learner, in its tensors: proved equal where it lies, copied where it is saved."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor


class Learner(Protocol):
    """An algorithm, as far as what outlives an update is concerned."""

    def shared_tensors(self) -> dict[str, Tensor]:
        """Everything that is equal on all ranks, in place: what is written into these tensors is what it goes on with.

        Parameters, optimizer, normalizers, learning rate, sums of metrics.
        """
        ...

    def shard_state(self, k: int) -> dict[str, Any]:
        """What belongs to local shard number `k` alone: random streams, accumulators. Plain values and numpy arrays."""
        ...

    def restore_shard(self, k: int, state: dict[str, Any]) -> None:
        """Continue local shard number `k` from what `shard_state` told."""
        ...


class InTensors:
    """A learner as `lockstep.session.run_state` knows it."""

    def __init__(self, learner: Learner) -> None:
        self.proof = learner.shared_tensors
        self.shard_state, self.restore_shard = learner.shard_state, learner.restore_shard

    def shared_arrays(self) -> dict[str, np.ndarray]:
        """A copy on the host of what is equal on all ranks; on a CPU, the tensors' own memory."""
        return {name: tensor.detach().cpu().numpy() for name, tensor in self.proof().items()}

    @torch.no_grad()
    def load_shared(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write into the tensors what `shared_arrays` told."""
        for name, tensor in self.proof().items():
            tensor.copy_(torch.from_numpy(arrays[name]))
