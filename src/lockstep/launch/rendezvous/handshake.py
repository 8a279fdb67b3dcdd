"""The handshake of two nodes: both prove that they have the run's secret before either sends anything else.

The main node sends a nonce, the other one its own with a proof of the secret, then the main node proves it too; then
the node sends its `NodeInfo`. Nothing is encrypted: the secret keeps runs apart on a trusted network.
"""

import hmac
import secrets
from dataclasses import asdict, dataclass
from typing import Any

from lockstep.distributed.network.framing import MessageConnection, NotLockstepError
from lockstep.distributed.network.store_server import PROTOCOL, VERSION
from lockstep.errors import ConfigError
from lockstep.launch.nodes import Nodes

HANDSHAKE_S = 8.0
"""Bound on each step until both sides have proved themselves."""
SECRETS_DIFFER = "LOCKSTEP_TOKEN or --token-file, and --rdzv-id, must be the same on all nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """What a node sends about itself."""

    process: str
    """Identifies one start of one launcher, which may lose its connection and reconnect."""
    host: str
    address: str
    node_rank: int | None
    minimum: int
    maximum: int
    nproc: int
    run_id: str
    identity: dict[str, Any]
    max_restarts: int = 0

    def __str__(self) -> str:
        return f"{self.host} ({self.address})"

    @property
    def elastic(self) -> bool:
        """Whether it expects nodes to come and go."""
        return self.minimum != self.maximum


def run_secret(nodes: Nodes) -> bytes:
    """The secret of admission. Without a token it is the run's id, which only prevents accidents."""
    return (f"token {nodes.token}" if nodes.token else f"run {nodes.run_id}").encode()


def run_key(token: str, salt: str) -> bytes:
    """The key that all admitted nodes share; with a token, an eavesdropper cannot compute it."""
    return hmac.digest(token.encode(), bytes.fromhex(salt), "sha256")


def proof_of_main_node(message: dict[str, Any], secret: bytes, nonce: str) -> str | None:
    """The main node's proof, if a node's message proves the secret; else None.

    Raises:
        ConfigError: the node has another version of the protocol.
    """
    if message.get(VERSION) != PROTOCOL:
        raise ConfigError(_versions_differ(message))
    theirs = str(message.get("nonce"))
    if not _equal(message.get("proof"), _proof(secret, "node", nonce, theirs)):
        return None
    return _proof(secret, "main", nonce, theirs)


def receive_greeting(connection: MessageConnection, timeout_s: float = HANDSHAKE_S) -> dict[str, Any]:
    """The greeting of a main node. Raises `NotLockstepError` if the other side is none."""
    greeting = connection.receive(timeout_s)
    if VERSION not in greeting:
        raise NotLockstepError("it does not speak Lockstep's protocol")
    return greeting


def introduce(connection: MessageConnection, greeting: dict[str, Any], node: NodeInfo, secret: bytes) -> None:
    """Prove the secret to a main node, have it prove the same, then send it `node`. Raises ConfigError if refused."""
    theirs, mine = str(greeting.get("nonce")), secrets.token_hex(16)
    connection.send({VERSION: PROTOCOL, "nonce": mine, "proof": _proof(secret, "node", theirs, mine)})
    if greeting[VERSION] != PROTOCOL:  # sent all the same: the main node reports the difference, too
        raise ConfigError(_versions_differ(greeting))
    reply = connection.receive(HANDSHAKE_S)
    if reply.get("error"):
        raise ConfigError(f"the main node sent this one away: {reply['error']}")
    if not _equal(reply.get("proof"), _proof(secret, "main", theirs, mine)):
        raise ConfigError(f"the main node does not know this run's secret; {SECRETS_DIFFER}")
    connection.send(asdict(node))


def _proof(secret: bytes, side: str, challenge: str, response: str) -> str:
    """Proves that a side has the secret, for this pair of nonces only."""
    return hmac.digest(secret, f"{side} {challenge} {response}".encode(), "sha256").hex()


def _equal(given: Any, expected: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(str(given).encode(), expected.encode())


def _versions_differ(message: dict[str, Any]) -> str:
    return (
        f"the versions of Lockstep differ: one node meets others by protocol {PROTOCOL}, another by "
        f"{message.get(VERSION)}; install the same version on all nodes"
    )
