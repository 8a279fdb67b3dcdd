"""What crosses ranks, as far as both backends have it alike: what surrounds a run needs no more than this.

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
    """The collectives of a world: `lockstep.torch.comm.Comm` and `lockstep.jax.comm.Comm`.

    Every method marked *collective* must be called by all processes in the same order.
    """

    @property
    def world(self) -> World:
        """Who takes part."""
        ...

    @property
    def timers(self) -> Timers:
        """Told when this process synchronises and waits."""
        ...

    @property
    def backend(self) -> str:
        """`gloo` or `nccl`."""
        ...

    @property
    def num_messages(self) -> Counter[str]:
        """How many messages this process has sent, by tag."""
        ...

    def sum_statistics(self, rows: np.ndarray, tag: str = ...) -> np.ndarray:
        """The sum over all shards of one row [n] each, from the rows [K, n] of this process; *collective*."""
        ...

    def gather_object(self, value: Any, tag: str = ...) -> list[Any]:
        """The JSON-able values (arrays allowed) of all processes, in their order, on every one; *collective*."""
        ...

    def broadcast_object(self, value: Any = None, source: int = ..., tag: str = ...) -> Any:
        """The JSON-able value (arrays allowed) of process `source`; *collective*."""
        ...

    def barrier(self, tag: str = ...) -> None:
        """Wait for all processes; *collective*."""
        ...

    def check_equal(self, tensors: Mapping[str, Any], tag: str = ...) -> None:
        """Raise `MismatchError`, naming ranks and tensors, unless all ranks hold the same bits; *collective*."""
        ...

    def observe(self) -> list[Observed]:
        """What the processes of this host do at this moment; not collective."""
        ...

    def tell(self, words: str) -> None:
        """Tell the other hosts why this process is about to leave; not collective, and from any thread."""
        ...
