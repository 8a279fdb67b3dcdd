"""Torch's own store, as a kind of store that ranks meet at: its process groups need it."""

import datetime
import socket
from typing import Any

from torch.distributed import (
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)

from lockstep.distributed.network.stores import ANSWER_S, CONNECT_S
from lockstep.system.bounded import bounded


class TorchKind:
    """Stores of `torch.distributed`."""

    def serve(self, listener: socket.socket, address: str) -> Store:
        """A store behind a listening socket, in this process."""
        port = listener.getsockname()[1]
        limit = datetime.timedelta(seconds=ANSWER_S)
        return TCPStore(
            address or "127.0.0.1", port, None, True, limit, wait_for_workers=False, master_listen_fd=listener.detach()
        )

    def reach(self, address: str, port: int) -> Store:
        """The store that somebody serves there; also that of torchrun's agent."""
        # The library's own client writes pages of warnings while nobody listens.
        socket.create_connection((address, port), CONNECT_S).close()
        limit = datetime.timedelta(seconds=ANSWER_S)
        # To one who accepts and says nothing, its client listens for ever.
        return bounded(lambda: TCPStore(address, port, None, False, limit, wait_for_workers=False), ANSWER_S)

    def part(self, prefix: str, store: Any) -> Store:
        """What begins with a prefix."""
        return PrefixStore(prefix, store)
