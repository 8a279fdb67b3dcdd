"""The state of a learner as tensors: compared between ranks on the device, copied to the host for checkpoints."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lockstep.session.run_state import ShardStates


class Learner(ShardStates, Protocol):
    """The state of an algorithm."""

    def shared_tensors(self) -> dict[str, Tensor]:
        """State that is equal on all ranks; a resumed run writes into these tensors.

        Parameters, optimizer, normalizers, learning rate, sums of metrics.
        """
        ...


class LearnerState:
    """The `lockstep.session.run_state.Learner` of PyTorch."""

    def __init__(self, learner: Learner) -> None:
        self.state_to_compare = learner.shared_tensors
        self.shard_state = learner.shard_state
        self.restore_shard = learner.restore_shard

    def shared_arrays(self) -> dict[str, np.ndarray]:
        """The shared tensors as numpy arrays; on a CPU without a copy."""
        return {name: tensor.detach().cpu().numpy() for name, tensor in self.state_to_compare().items()}

    @torch.no_grad()
    def load_shared(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Copy the result of `shared_arrays` into the tensors."""
        for name, tensor in self.state_to_compare().items():
            tensor.copy_(torch.from_numpy(arrays[name]))
