"""The main node's side of the rendezvous: admits nodes that fit together, then serves them the run's store.

Until enough nodes have joined, a contradiction among them refuses all. Later nodes are checked one by one, and a
refusal does not affect admitted nodes. A node is a member as long as its connection is open.
"""

import socket
import threading
import time
from typing import Any, Self

import msgspec

from lockstep.distributed.network.interfaces import is_loopback
from lockstep.distributed.network.store import MemoryStore
from lockstep.distributed.network.store_server import MessageServer, ServedConnection
from lockstep.errors import ConfigError
from lockstep.launch.rendezvous.contradictions import contradiction, missing, obstacle
from lockstep.launch.rendezvous.handshake import HANDSHAKE_S, SECRETS_DIFFER, NodeInfo, proof_of_main_node

_NOTIFY_S = 2.0  # interval of messages to waiting nodes; they also show that the main node is alive
_SETTLE_S = 10.0  # after the first contradiction: for the other nodes to connect and receive the refusal, too
_FREE_S = 20.0  # until the place of a node that vanished is free; then a later node is refused
_MAX_UNPROVEN = 256  # connections that have not proved the secret


class _NodeConnection(ServedConnection):
    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self.proven = False
        self.node: NodeInfo | None = None
        self.admitted = False
        self.obstacle = ""
        self.notified_at = 0.0


class RendezvousServer(MessageServer[_NodeConnection]):
    """Receives nodes at `listener`, which is closed at the end, from `__enter__` to `__exit__`.

    `main` is the main node itself; `admission` is sent to each node that is admitted; `file_nonce` is that of the init
    file, if any.

    Attributes:
        store: served to admitted nodes.
        gathered: set once enough nodes are there and agree.
        refusal: why the rendezvous failed, for all nodes alike; empty while it has not.
        most: the largest number of nodes at once, this one included.
    """

    def __init__(
        self, main: NodeInfo, listener: socket.socket, secret: bytes, admission: dict[str, Any], file_nonce: str = ""
    ) -> None:
        super().__init__(listener, _NodeConnection, {"place": file_nonce})
        self.store = MemoryStore()
        self.gathered = threading.Event()
        self.refusal = ""
        self.most = 1
        self._main = main
        self._secret = secret
        self._admission = admission
        self._farewell: dict[str, Any] = {}
        self._known_nodes: list[NodeInfo] = []
        self._contradiction: str | None = None
        self._contradiction_since = 0.0
        self._rejection = ""
        self._rejected_at = 0.0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        """Refuse the nodes that still wait, with the reason why this node exits."""
        if isinstance(error, ConfigError):
            self._farewell = {"error": str(error), "code": error.exit_code}
        else:
            self._farewell = {"error": "the main node has exited: it was stopped, or its run has ended", "code": 1}
        self.close()

    @property
    def nodes(self) -> list[NodeInfo]:
        """All nodes that are here, this one first."""
        return [self._main, *(c.node for c in list(self.connections) if c.node is not None)]

    @property
    def reached_at(self) -> str | None:
        """The address of this machine to which another node connected; not loopback, if there is a choice."""
        here = [c.own_address for c in list(self.connections) if c.node is not None]
        return next((address for address in here if not is_loopback(address)), here[0] if here else None)

    def missing(self) -> str:
        """Which nodes have not come yet, and which one was rejected, for messages."""
        return missing(self.nodes) + (f" ({self._rejection})" if self._rejection else "")

    def on_accept(self, connection: _NodeConnection) -> None:
        """Drop the oldest unauthenticated connection if there are too many."""
        unproven = [other for other in self.connections if not other.proven]
        if len(unproven) >= _MAX_UNPROVEN:
            self.drop(unproven[0])

    def on_message(self, connection: _NodeConnection, message: dict[str, Any]) -> None:
        """One step of the handshake; of an admitted node, a request to the store."""
        if connection.admitted:
            self.answer(connection, self.store, message)
        elif connection.proven:
            if connection.node is None:
                self._register(connection, message)
        else:
            self._authenticate(connection, message)

    def on_tick(self, now: float) -> None:
        """Admit or refuse waiting nodes, and send them what is awaited."""
        for connection in list(self.connections):
            if connection.node is None and now > connection.opened_at + HANDSHAKE_S:
                self.drop(connection)
        waiting = [c for c in self.connections if c.node is not None and not c.admitted and not c.closing]
        if self.refusal:
            for connection in waiting:
                self._refuse(connection, self.refusal)
        elif self.gathered.is_set():
            for connection in waiting:
                self._admit_late(connection, now)
        else:
            self._gather(waiting, now)
        for connection in waiting:
            if not connection.admitted and not connection.closing and now > connection.notified_at + _NOTIFY_S:
                connection.notified_at = now
                self.send(connection, {"waiting": connection.obstacle or self.missing()})

    def on_close(self) -> None:
        """Send the farewell to the nodes that wait."""
        for connection in list(self.connections):
            if connection.proven and not connection.admitted:
                self.send(connection, self._farewell)

    def _authenticate(self, connection: _NodeConnection, message: dict[str, Any]) -> None:
        try:
            proof = proof_of_main_node(message, self._secret, connection.nonce)
        except ConfigError as error:
            self._reject(connection, str(error))
            return
        if proof is None:
            self._reject(connection, SECRETS_DIFFER)
            return
        connection.proven = True
        self.send(connection, {"proof": proof})

    def _register(self, connection: _NodeConnection, message: dict[str, Any]) -> None:
        try:
            node = msgspec.convert(message, NodeInfo)
        except msgspec.ValidationError as error:
            self._refuse(connection, f"the main node does not understand this one: {error}")
            return
        for other in list(self.connections):
            if other.node is not None and other.node.process == node.process:
                self.drop(other)  # the node lost that connection, and this side has not noticed yet
        connection.node = node

    def _reject(self, connection: _NodeConnection, reason: str) -> None:
        """Refuse a node without the secret. If nodes are missing it may be one of them: then this node ends, too."""
        self._rejection = f"a node at {connection.peer} was sent away: {reason}"
        self._rejected_at = time.monotonic()
        self._refuse(connection, reason)

    def _gather(self, waiting: list[_NodeConnection], now: float) -> None:
        nodes = self.nodes
        if nodes != self._known_nodes:
            self._known_nodes = nodes
            self.most = max(self.most, len(nodes))
            self._contradiction = contradiction(nodes)
            self._contradiction_since = (self._contradiction_since or now) if self._contradiction else 0.0
        if self._contradiction is not None:
            if len(nodes) >= self._main.maximum or now > self._contradiction_since + _SETTLE_S:
                self.refusal = self._contradiction
        elif len(nodes) >= self._main.minimum:
            for connection in waiting:
                self._admit(connection)
            self.gathered.set()
        elif self._rejection and now > self._rejected_at + _SETTLE_S:
            self.refusal = f"{self._rejection} ({missing(nodes)})"

    def _admit_late(self, connection: _NodeConnection, now: float) -> None:
        assert connection.node is not None
        if (reason := contradiction([self._main, connection.node])) is not None:
            self._refuse(connection, reason)
            return
        present = [self._main, *(c.node for c in self.connections if c.admitted and c.node is not None)]
        connection.obstacle = obstacle(connection.node, present) or ""
        if not connection.obstacle:
            self._admit(connection)
        elif now > connection.opened_at + _FREE_S:
            self._refuse(connection, connection.obstacle)

    def _admit(self, connection: _NodeConnection) -> None:
        connection.admitted = True
        self.send(connection, {"admitted": self._admission})

    def _refuse(self, connection: _NodeConnection, reason: str) -> None:
        self.send_and_close(connection, {"error": reason, "code": ConfigError.exit_code})
