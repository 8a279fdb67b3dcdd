"""Stores that rank 0 holds for the others: opened on one interface, reached within a bound, known by their greeting."""

import datetime
import hashlib
import hmac
import json
import secrets
import socket
import time
from dataclasses import dataclass, field

from torch.distributed import (
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)

from lockstep.bounded import bounded
from lockstep.errors import ConfigError
from lockstep.network.interfaces import endpoint
from lockstep.world import World

_CONNECT_S = 2.0  # bound on one attempt to connect
_ANSWER_S = 10.0  # bound on what a server that was reached may take to answer
_GREETING = "lockstep/greeting"
_STRANGER = "lockstep/stranger"
_STRANGER_S = 10.0  # how long a rank that another took for a stranger is waited for
_POLL_S = 0.01


@dataclass
class Met:
    """The store of one start of a world."""

    store: Store
    nonce: str
    """Names the start."""
    address: str
    """Where rank 0 is reached."""
    stranger_at: float = field(default=0.0, repr=False)

    def part(self, token: str, times: int) -> Store:
        """Room for one meeting, which nobody finds who does not know the token."""
        return PrefixStore(f"lockstep/{_secret(self.nonce, token)[:24]}/{times}", self.store)

    def check_strangers(self, part: Store) -> None:
        """Raise a `ConfigError` if somebody without the token came a while ago as a rank that is missing."""
        if self.stranger_at == 0.0:
            if self.store.check([_STRANGER]):
                self.stranger_at = time.monotonic()
        elif time.monotonic() > self.stranger_at + _STRANGER_S:
            stranger = json.loads(self.store.get(_STRANGER))
            if not part.check([f"rank/{stranger['rank']}"]):
                raise ConfigError(
                    f"rank {stranger['rank']} is missing, and a process on host {stranger['host']} wanted to be it "
                    "with another token; give all the same LOCKSTEP_TOKEN, each run its own port"
                )


def serve(listener: socket.socket, address: str, token: str) -> Met:
    """A store behind a listening socket, in this process."""
    port = listener.getsockname()[1]
    limit = datetime.timedelta(seconds=_ANSWER_S)
    store = TCPStore(
        address or "127.0.0.1", port, None, True, limit, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    met = Met(store, secrets.token_hex(8), address)
    store.set(_GREETING, json.dumps({"nonce": met.nonce, "proof": _proof(met.nonce, token)}))
    return met


def reached(address: str, port: int) -> Store:
    """The store that somebody serves there.

    Raises:
        OSError: nobody listens there, or there is no way to it.
        TimeoutError: what listens there does not answer.
        RuntimeError: it is no store.
    """
    # The library's own client writes pages of warnings while nobody listens.
    socket.create_connection((address, port), _CONNECT_S).close()
    limit = datetime.timedelta(seconds=_ANSWER_S)
    # To one who accepts and says nothing, its client listens for ever.
    return bounded(lambda: TCPStore(address, port, None, False, limit, wait_for_workers=False), _ANSWER_S)


def visit(world: World, address: str, port: int, nonce: str | None = None) -> Met:
    """The store of rank 0 of our world at an address.

    Raises:
        ConfigError: it is another run's.
        OSError, TimeoutError, RuntimeError: there is no store of ours, or not that of the start called `nonce`.
    """
    store = reached(address, port)
    greeting = _greeting(store, address, port)
    if nonce is not None and greeting["nonce"] != nonce:
        raise TimeoutError(f"the start that was met at {endpoint(address, port)} is gone")
    if greeting["proof"] != _proof(greeting["nonce"], world.token):
        store.set(_STRANGER, json.dumps({"rank": world.rank, "host": socket.gethostname()}))
        raise ConfigError(
            f"the ranks that meet at {endpoint(address, port)} have another token than this one, "
            f"rank {world.rank} on host {socket.gethostname()}; give all the same LOCKSTEP_TOKEN, each run its own port"
        )
    return Met(store, greeting["nonce"], address)


def lives(address: str, port: int, nonce: str) -> bool:
    """Whether the start called `nonce` is still met at an address."""
    try:
        return _greeting(reached(address, port), address, port)["nonce"] == nonce
    except (OSError, RuntimeError):
        return False


def answers(store: Store) -> bool:
    """Whether the server behind a store that was met before still lives."""
    try:
        store.num_keys()
    except RuntimeError:
        return False
    return True


def _greeting(store: Store, address: str, port: int) -> dict[str, str]:
    until = time.monotonic() + _ANSWER_S
    while not store.check([_GREETING]):  # rank 0 sets it at once
        if time.monotonic() > until:
            raise TimeoutError(f"what listens at {endpoint(address, port)} is not rank 0 of Lockstep")
        time.sleep(_POLL_S)
    return json.loads(store.get(_GREETING))


def _secret(nonce: str, token: str) -> str:
    return hmac.new(token.encode(), nonce.encode(), hashlib.sha256).hexdigest()


def _proof(nonce: str, token: str) -> str:
    return hashlib.sha256(_secret(nonce, token).encode()).hexdigest()
