"""What nodes say to each other when they meet: JSON lines over TCP, and proofs from both sides before anything is told.

The main node sends a nonce, the other one its own and a proof that it knows the run's secret, then the main node proves
the same; only now a node says who it is. What follows is not encrypted: the secret keeps apart what does not belong
together, on a network that is trusted.
"""

import hmac
import json
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, cast

from lockstep.errors import ConfigError
from lockstep.launch.nodes import Nodes

PROTOCOL = 1
GREETING_S = 8.0
"""Bound on each step until both sides have proved themselves."""
KEEPS_APART = "LOCKSTEP_TOKEN or --token-file, and --rdzv-id, must be the same on all nodes"
_VERSION = "lockstep_meeting"
_MAX_LINE = 1 << 20
_TICK_S = 0.1
_UNANSWERED_S = 15  # then a connection is given up: after this, a node that vanished leaves its place to another


class Dropped(Exception):  # noqa: N818 - it is no error: the other side may come back
    """The other side closed the connection, or does not answer any more."""


class Stranger(Exception):  # noqa: N818 - what it means is said by those who catch it
    """Something answers that is no main node of Lockstep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """What a node says of itself."""

    process: str
    """One start of one launcher: it may lose its connection and come back."""
    host: str
    address: str
    node_rank: int | None
    minimum: int
    maximum: int
    nproc: int
    run_id: str
    identity: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.host} ({self.address})"

    @property
    def elastic(self) -> bool:
        """Whether it expects nodes to come and go."""
        return self.minimum != self.maximum


def secret(nodes: Nodes) -> bytes:
    """What a node must know to be let in; an identifier alone keeps runs apart only by accident."""
    return (f"token {nodes.token}" if nodes.token else f"run {nodes.run_id}").encode()


class Lines:
    """The lines of one connection, as they come in."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that are whole now. ValueError: this is not our protocol."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        if len(self._pending) > _MAX_LINE:
            raise ValueError("a line has no end")
        messages: list[Any] = [json.loads(line) for line in lines]
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError("a line holds no object")
        return cast("list[dict[str, Any]]", messages)


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """One message; `Dropped` if the other side is gone."""
    try:
        connection.sendall(json.dumps(message).encode() + b"\n")
    except OSError as error:
        raise Dropped from error


def challenge(nonce: str, place: str) -> dict[str, Any]:
    """The main node's first words; `place` is the nonce of the file that named it, if one did."""
    return {_VERSION: PROTOCOL, "nonce": nonce, "place": place}


def answer(message: dict[str, Any], key: bytes, nonce: str) -> str | None:
    """The main node's proof, if a node's answer to its challenge proves the secret; else None.

    Raises:
        ConfigError: the node speaks another version.
    """
    if message.get(_VERSION) != PROTOCOL:
        raise ConfigError(_other_version(message))
    theirs = str(message.get("nonce"))
    if not same(message.get("proof"), proof(key, "node", nonce, theirs)):
        return None
    return proof(key, "main", nonce, theirs)


def run_key(token: str, salt: str) -> bytes:
    """The key that all admitted nodes share; where there is a token, who listened to them cannot know it."""
    return hmac.digest(token.encode(), bytes.fromhex(salt), "sha256")


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel notice, within a quarter of a minute, that the machine on the other side has vanished."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _UNANSWERED_S // 3),
        (socket.TCP_KEEPINTVL, _UNANSWERED_S // 3),
        (socket.TCP_KEEPCNT, 2),
        (socket.TCP_USER_TIMEOUT, 1000 * _UNANSWERED_S),
        (socket.TCP_NODELAY, 1),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


class Connection:
    """A node's side of a connection to a main node. Closes with it."""

    def __init__(self, connection: socket.socket, poll: Callable[[], None]) -> None:
        """Args are the connection, and what to call ten times a second while waiting; it may raise."""
        self.connection, self._poll = connection, poll
        self._lines, self._messages = Lines(), list[dict[str, Any]]()
        connection.settimeout(_TICK_S)

    def place(self, timeout_s: float = GREETING_S) -> str:
        """The first words of the main node: which file named it. Also checks that it is one."""
        first = self.receive(timeout_s)
        if _VERSION not in first:
            raise Stranger("it does not speak Lockstep's protocol")
        self._nonce, self._version = str(first.get("nonce")), first
        return str(first.get("place"))

    def introduce(self, node: NodeInfo, key: bytes) -> None:
        """Prove the secret, have it proved, then say who we are."""
        mine = secrets.token_hex(16)
        send(
            self.connection,
            {_VERSION: PROTOCOL, "nonce": mine, "proof": proof(key, "node", self._nonce, mine)},
        )
        if self._version[_VERSION] != PROTOCOL:  # said all the same: the other side must know it, too
            raise ConfigError(_other_version(self._version))
        reply = self.receive(GREETING_S)
        if reply.get("error"):
            raise ConfigError(f"the main node sent this one away: {reply['error']}")
        if not same(reply.get("proof"), proof(key, "main", self._nonce, mine)):
            raise ConfigError(f"the main node does not know this run's secret; {KEEPS_APART}")
        send(self.connection, asdict(node))

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """The next message. `Dropped` if the connection ends, `Stranger` if there is no sense in it or none comes."""
        deadline = time.monotonic() + timeout_s
        while not self._messages:
            if time.monotonic() > deadline:
                raise Stranger(f"it said nothing for {timeout_s:g} s")
            self._poll()
            try:
                data = self.connection.recv(1 << 16)
                self._messages = self._lines.feed(data)
            except TimeoutError:
                continue
            except OSError as error:
                raise Dropped from error
            except ValueError:
                raise Stranger("it does not speak Lockstep's protocol") from None
            if not data:
                raise Dropped
        return self._messages.pop(0)


def proof(key: bytes, side: str, challenge: str, answer: str) -> str:
    """That a side knows a key, for this exchange of nonces only."""
    return hmac.digest(key, f"{side} {challenge} {answer}".encode(), "sha256").hex()


def same(given: Any, right: str) -> bool:
    """Whether what was told is right; how long that takes says nothing."""
    return hmac.compare_digest(str(given).encode(), right.encode())


def _other_version(message: dict[str, Any]) -> str:
    return (
        f"the versions of Lockstep differ: one node meets others by protocol {PROTOCOL}, another by "
        f"{message.get(_VERSION)}; install the same version on all nodes"
    )
