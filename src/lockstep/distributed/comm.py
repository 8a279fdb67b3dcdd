"""The collectives that both backends have, which is all that sessions need.

K: the shards of this process.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from lockstep.distributed.timers import Timers
from lockstep.distributed.watch import Observed
from lockstep.world import World


class Comm(AbstractContextManager["Comm"], Protocol):
    """The collectives of a world, implemented by `lockstep.torch.comm.Comm` and `lockstep.jax.comm.Comm`.

    Every method marked *collective* must be called by all processes in the same order.
    """

    @property
    def world(self) -> World:
        """The processes that take part."""
        ...

    @property
    def timers(self) -> Timers:
        """Record when this process synchronises and waits."""
        ...

    @property
    def backend(self) -> str:
        """`gloo` or `nccl`."""
        ...

    @property
    def num_messages(self) -> Counter[str]:
        """Messages that this process has sent, by tag."""
        ...

    def sum_statistics(self, rows: np.ndarray, tag: str = ...) -> np.ndarray:
        """Sum one row [n] per shard over all shards, from the rows [K, n] of this process; *collective*."""
        ...

    def any(self, flag: bool, tag: str = ...) -> bool:
        """Whether the flag is set on any rank; *collective*."""
        ...

    def gather_object(self, value: Any, tag: str = ...) -> list[Any]:
        """Gather the JSON-able values (arrays allowed) of all processes, in their order, on each; *collective*."""
        ...

    def broadcast_object(self, value: Any = None, source: int = ..., tag: str = ...) -> Any:
        """Broadcast the JSON-able value (arrays allowed) of process `source`; *collective*."""
        ...

    def barrier(self, tag: str = ...) -> None:
        """Wait for all processes; *collective*."""
        ...

    def check_equal(self, tensors: Mapping[str, Any], tag: str = ...) -> None:
        """Raise `MismatchError`, naming ranks and tensors, unless all ranks hold the same bits; *collective*."""
        ...

    def observe(self) -> list[Observed]:
        """The current state of this host's processes; not collective."""
        ...

    def announce_failure(self, reason: str) -> None:
        """Send the other hosts the reason why this process exits; not collective, and from any thread."""
        ...
