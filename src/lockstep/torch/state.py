"""The state of a learner as tensors: compared between ranks on the device, copied to the host for checkpoints."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lockstep.distributed.arguments import a_type
from lockstep.errors import ConfigError
from lockstep.session.run_state import ShardStates, check_methods


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
        check_methods(learner, "shared_tensors", "shard_state", "restore_shard")
        self.state_to_compare = learner.shared_tensors
        self.shard_state = learner.shard_state
        self.restore_shard = learner.restore_shard

    def shared_arrays(self) -> dict[str, np.ndarray]:
        """The shared tensors as numpy arrays, bfloat16 as float32, which holds it; on a CPU without another copy.

        Raises:
            ConfigError: a value is no tensor; names it.
        """
        return {name: _array(name, tensor) for name, tensor in self.state_to_compare().items()}

    @torch.no_grad()
    def load_shared(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Copy the result of `shared_arrays` into the tensors.

        Raises:
            ConfigError: a tensor is made anew at each call, so that what was copied is lost; names it.
        """
        filled = self.state_to_compare()
        for name, tensor in filled.items():
            tensor.copy_(torch.from_numpy(arrays[name]))
        for name, tensor in self.state_to_compare().items():
            if tensor.data_ptr() != filled[name].data_ptr() and not _same(tensor, filled[name]):
                raise ConfigError(
                    f"shared_tensors makes a new tensor for {name} at each call, so that a resumption cannot fill it; "
                    "give the tensor that the algorithm itself uses, or keep it in shard_state"
                )


def _array(name: str, tensor: Any) -> np.ndarray:
    if not isinstance(tensor, Tensor):
        raise ConfigError(
            f"shared_tensors gives {a_type(tensor)} for {name}; give the tensor that the algorithm itself uses, or "
            "keep it in shard_state"
        )
    on_host = tensor.detach().cpu()
    return (on_host.float() if on_host.dtype == torch.bfloat16 else on_host).numpy()  # numpy has no bfloat16


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether all numbers are equal; NaN equals NaN."""
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())
