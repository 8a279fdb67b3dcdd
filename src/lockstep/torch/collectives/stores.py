"""torch's own store for the rendezvous of ranks: its process groups need it."""

import datetime
import socket
from typing import Any

from torch.distributed import (
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)

from lockstep.distributed.network.interfaces import here
from lockstep.distributed.network.rank_store import CONNECT_S
from lockstep.distributed.network.store import ANSWER_S
from lockstep.system.bounded import bounded


class TorchStoreBackend:
    """Opens stores of `torch.distributed`."""

    def serve(self, listener: socket.socket, address: str) -> Store:
        """Serve a store from this process."""
        port = listener.getsockname()[1]
        limit = datetime.timedelta(seconds=ANSWER_S)
        return TCPStore(
            here(address), port, None, True, limit, wait_for_workers=False, master_listen_fd=listener.detach()
        )

    def connect(self, address: str, port: int) -> Store:
        """Connect to a store; also to that of torchrun's agent."""
        # torch's own client writes pages of warnings while nothing listens.
        socket.create_connection((address, port), CONNECT_S).close()
        limit = datetime.timedelta(seconds=ANSWER_S)
        # torch's client waits without a bound for a server that accepts and sends nothing.
        return bounded(lambda: TCPStore(address, port, None, False, limit, wait_for_workers=False), ANSWER_S)

    def with_prefix(self, prefix: str, store: Any) -> Store:
        """The keys of a store that begin with `prefix`."""
        return PrefixStore(prefix, store)
