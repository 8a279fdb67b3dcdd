"""CPU tensors through `lockstep.distributed.network.hosts`, which takes numpy arrays: shared memory, no copies."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from lockstep.distributed.network import hosts
from lockstep.distributed.tree import Node
from lockstep.torch.collectives.checksum import dtype_name

Add = Callable[[Tensor, Tensor], Tensor]
_ADDS: Mapping[object, hosts.Add] = {torch.add: np.add, torch.maximum: np.maximum}


class HostTensors:
    """The collectives of `all_hosts`, for tensors."""

    def __init__(self, all_hosts: hosts.Hosts) -> None:
        self.hosts = all_hosts

    def exchange(self, parts: Sequence[Tensor], tag: str, add: Add, layout: int = 0) -> Mapping[Node, Tensor]:
        """As `hosts.Hosts.exchange`, for sums and maxima."""
        values = self.hosts.exchange([part.detach().numpy() for part in parts], tag, _ADDS[add], layout)
        return {node: torch.from_numpy(value) for node, value in values.items()}

    def gather(self, flat: Tensor, tag: str) -> Tensor:
        """The tensors [n] of all ranks, [size, n]."""
        return torch.from_numpy(self.hosts.gather(flat.numpy(), tag))

    def broadcast_(self, flat: Tensor, source: int, tag: str, layout: int = 0) -> None:
        """Broadcast the tensor of rank `source`, of any type."""
        self.hosts.broadcast(flat.view(torch.uint8).numpy(), source, tag, dtype_name(flat.dtype), layout)
