"""Stores that rank 0 holds for the others: opened on one interface, reached within a bound, known by their greeting."""

import hashlib
import hmac
import json
import secrets
import socket
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from lockstep.distributed.network import key_values
from lockstep.distributed.network.interfaces import endpoint
from lockstep.distributed.network.membership_check import Store
from lockstep.errors import ConfigError
from lockstep.world import World

CONNECT_S = 2.0
"""Bound on one attempt to connect."""
ANSWER_S = key_values.ANSWER_S
_GREETING = "lockstep/greeting"
_STRANGER = "lockstep/stranger"
_STRANGER_S = 10.0  # how long a rank that another took for a stranger is waited for
_POLL_S = 0.01


class Kind(Protocol):
    """A kind of store: torch's own, whose stores its process groups need, or Lockstep's."""

    def serve(self, listener: socket.socket, address: str) -> Store:
        """A store behind a listening socket, in this process."""
        ...

    def reach(self, address: str, port: int) -> Store:
        """The store that somebody serves there.

        Raises:
            OSError: nobody listens there, or there is no way to it.
            TimeoutError: what listens there does not answer.
            RuntimeError: it is no store.
        """
        ...

    def part(self, prefix: str, store: Any) -> Store:
        """What begins with a prefix."""
        ...


class OwnKind:
    """Stores of `lockstep.distributed.network.key_values`."""

    def serve(self, listener: socket.socket, address: str) -> Store:
        """A store behind a listening socket, in this process."""
        return key_values.Server(listener).store

    def reach(self, address: str, port: int) -> Store:
        """The store that somebody serves there."""
        return key_values.Client(address, port, CONNECT_S)

    def part(self, prefix: str, store: Any) -> Store:
        """What begins with a prefix."""
        return key_values.Part(prefix, store)


@dataclass
class Met:
    """The store of one start of a world."""

    store: Store
    nonce: str
    """Names the start."""
    address: str
    """Where rank 0 is reached."""
    kind: Kind
    stranger_at: float = field(default=0.0, repr=False)

    def part(self, token: str, times: int) -> Store:
        """Room for one meeting, which nobody finds who does not know the token."""
        return self.kind.part(f"lockstep/{_secret(self.nonce, token)[:24]}/{times}", self.store)

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

    @property
    def answers(self) -> bool:
        """Whether the server behind a store that was met before still lives."""
        try:
            self.store.check([_GREETING])
        except RuntimeError:
            return False
        return True


def serve(kind: Kind, listener: socket.socket, address: str, token: str) -> Met:
    """A store behind a listening socket, in this process."""
    met = Met(kind.serve(listener, address), secrets.token_hex(8), address, kind)
    met.store.set(_GREETING, json.dumps({"nonce": met.nonce, "proof": _proof(met.nonce, token)}))
    return met


def visit(kind: Kind, world: World, address: str, port: int, nonce: str | None = None) -> Met:
    """The store of rank 0 of our world at an address.

    Raises:
        ConfigError: it is another run's.
        OSError, TimeoutError, RuntimeError: there is no store of ours, or not that of the start called `nonce`.
    """
    store = kind.reach(address, port)
    greeting = _handshake(store, address, port)
    if nonce is not None and greeting["nonce"] != nonce:
        raise TimeoutError(f"the start that was met at {endpoint(address, port)} is gone")
    if greeting["proof"] != _proof(greeting["nonce"], world.token):
        store.set(_STRANGER, json.dumps({"rank": world.rank, "host": socket.gethostname()}))
        raise ConfigError(
            f"the ranks that meet at {endpoint(address, port)} have another token than this one, "
            f"rank {world.rank} on host {socket.gethostname()}; give all the same LOCKSTEP_TOKEN, each run its own port"
        )
    return Met(store, greeting["nonce"], address, kind)


def lives(kind: Kind, address: str, port: int, nonce: str) -> bool:
    """Whether the start called `nonce` is still met at an address."""
    try:
        return _handshake(kind.reach(address, port), address, port)["nonce"] == nonce
    except (OSError, RuntimeError):
        return False


def _handshake(store: Store, address: str, port: int) -> dict[str, str]:
    until = time.monotonic() + ANSWER_S
    while not store.check([_GREETING]):  # rank 0 sets it at once
        if time.monotonic() > until:
            raise TimeoutError(f"what listens at {endpoint(address, port)} is not rank 0 of Lockstep")
        time.sleep(_POLL_S)
    return json.loads(store.get(_GREETING))


def _secret(nonce: str, token: str) -> str:
    return hmac.new(token.encode(), nonce.encode(), hashlib.sha256).hexdigest()


def _proof(nonce: str, token: str) -> str:
    return hashlib.sha256(_secret(nonce, token).encode()).hexdigest()
