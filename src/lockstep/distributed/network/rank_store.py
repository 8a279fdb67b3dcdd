"""The store that rank 0 serves to the other ranks of a world, and the proof that both have the same token.

torch's `TCPStore`, which its process groups need, accepts every connection. So the token is proved through the store:
rank 0 publishes a nonce with a proof of the token, and all other keys begin with a secret made from both.
"""

import hashlib
import hmac
import json
import secrets
import socket
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from lockstep.distributed.network.interfaces import endpoint
from lockstep.distributed.network.store import ANSWER_S, PrefixStore, Store
from lockstep.distributed.network.store_server import StoreClient, StoreServer
from lockstep.errors import ConfigError
from lockstep.world import World

CONNECT_S = 2.0
"""Bound on one attempt to connect."""
_GREETING = "lockstep/greeting"
_FOREIGN_RANK = "lockstep/foreign_rank"
_FOREIGN_RANK_S = 10.0  # how long to wait for a rank after another process with its number was refused
_POLL_S = 0.01


class StoreBackend(Protocol):
    """Opens stores of one implementation."""

    def serve(self, listener: socket.socket, address: str) -> Store:
        """Serve a store from this process."""
        ...

    def connect(self, address: str, port: int) -> Store:
        """Connect to a store.

        Raises:
            OSError: nothing listens there, or there is no route to it.
            TimeoutError: what listens there does not answer.
            RuntimeError: it is no store.
        """
        ...

    def with_prefix(self, prefix: str, store: Any) -> Store:
        """The keys of a store that begin with `prefix`."""
        ...


class LockstepStoreBackend:
    """`lockstep.distributed.network.store_server`, which needs no framework."""

    def serve(self, listener: socket.socket, address: str) -> Store:
        """Serve a store from this process."""
        return StoreServer(listener).store

    def connect(self, address: str, port: int) -> Store:
        """Connect to a store."""
        return StoreClient.connect(address, port, CONNECT_S)

    def with_prefix(self, prefix: str, store: Any) -> Store:
        """The keys of a store that begin with `prefix`."""
        return PrefixStore(prefix, store)


@dataclass
class RankStore:
    """The store of one start of a world."""

    store: Store
    nonce: str
    """Identifies the start."""
    address: str
    """Where rank 0 is reached."""
    backend: StoreBackend
    foreign_rank_seen_at: float = field(default=0.0, repr=False)

    def for_rendezvous(self, token: str, number: int) -> Store:
        """The keys of one rendezvous of this start, which cannot be found without the token."""
        return self.backend.with_prefix(f"lockstep/{_secret(self.nonce, token)[:24]}/{number}", self.store)

    def check_foreign_ranks(self, keys: Store) -> None:
        """Raise `ConfigError` if a process with another token was refused and the rank it claimed does not come."""
        if self.foreign_rank_seen_at == 0.0:
            if self.store.check([_FOREIGN_RANK]):
                self.foreign_rank_seen_at = time.monotonic()
        elif time.monotonic() > self.foreign_rank_seen_at + _FOREIGN_RANK_S:
            foreign = json.loads(self.store.get(_FOREIGN_RANK))
            if not keys.check([f"rank/{foreign['rank']}"]):
                raise ConfigError(
                    f"rank {foreign['rank']} is missing, and a process on host {foreign['host']} wanted to be it "
                    "with another token; give all the same LOCKSTEP_TOKEN, each run its own port"
                )

    @property
    def is_alive(self) -> bool:
        """Whether the store's process still answers."""
        try:
            self.store.check([_GREETING])
        except RuntimeError:
            return False
        return True


def serve(backend: StoreBackend, listener: socket.socket, address: str, token: str) -> RankStore:
    """Serve a store from this process, as rank 0."""
    opened = RankStore(backend.serve(listener, address), secrets.token_hex(8), address, backend)
    opened.store.set(_GREETING, json.dumps({"nonce": opened.nonce, "proof": _proof(opened.nonce, token)}))
    return opened


def connect(backend: StoreBackend, world: World, address: str, port: int, nonce: str | None = None) -> RankStore:
    """Connect to the store of rank 0 at a numeric address; `nonce` is that of the expected start, None: any.

    Raises:
        ConfigError: it belongs to another run.
        OSError, TimeoutError, RuntimeError: there is no store of this run, or not that of the expected start.
    """
    store = backend.connect(address, port)
    greeting = _greeting(store, address, port)
    if nonce is not None and greeting["nonce"] != nonce:
        raise TimeoutError(f"the start that was met at {endpoint(address, port)} is gone")
    if greeting["proof"] != _proof(greeting["nonce"], world.token):
        store.set(_FOREIGN_RANK, json.dumps({"rank": world.rank, "host": socket.gethostname()}))
        raise ConfigError(
            f"the ranks that meet at {endpoint(address, port)} have another token than this one, "
            f"rank {world.rank} on host {socket.gethostname()}; give all the same LOCKSTEP_TOKEN, each run its own port"
        )
    return RankStore(store, greeting["nonce"], address, backend)


def is_alive(backend: StoreBackend, address: str, port: int, nonce: str) -> bool:
    """Whether the start `nonce` still serves its store at an address."""
    try:
        return _greeting(backend.connect(address, port), address, port)["nonce"] == nonce
    except (OSError, RuntimeError):
        return False


def _greeting(store: Store, address: str, port: int) -> dict[str, str]:
    deadline = time.monotonic() + ANSWER_S
    while not store.check([_GREETING]):  # rank 0 sets it at once
        if time.monotonic() > deadline:
            raise TimeoutError(f"what listens at {endpoint(address, port)} is not rank 0 of Lockstep")
        time.sleep(_POLL_S)
    return json.loads(store.get(_GREETING))


def _secret(nonce: str, token: str) -> str:
    return hmac.new(token.encode(), nonce.encode(), hashlib.sha256).hexdigest()


def _proof(nonce: str, token: str) -> str:
    return hashlib.sha256(_secret(nonce, token).encode()).hexdigest()
