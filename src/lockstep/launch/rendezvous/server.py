"""The main node's side of a meeting: lets nodes in, compares what they say, and tells all of them the same.

Until enough nodes are there, whatever contradicts among them ends the meeting for all. Later ones are judged one by one
and change nothing for those who are in.
"""

import secrets
import selectors
import socket
import threading
import time
from types import TracebackType
from typing import Any, Self

import msgspec

from lockstep.distributed.network.interfaces import is_loopback
from lockstep.errors import ConfigError
from lockstep.launch.rendezvous.contradictions import contradiction, missing, obstacle
from lockstep.launch.rendezvous.handshake import (
    GREETING_S,
    KEEPS_APART,
    Dropped,
    Lines,
    NodeInfo,
    answer,
    challenge,
    keep_alive,
    send,
)

_TICK_S = 0.1
_TELL_S = 2.0  # how often those who wait hear what for, and so that the main node lives
_SETTLE_S = 10.0  # after the first contradiction: for the other nodes to come and hear of it, too
_FREE_S = 20.0  # until the place of a node that vanished is free; then a later one is sent away
_MAX_STRANGERS = 256  # connections that have not proved themselves


class _Connection:
    """A connection, and how far it is."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(1.0)  # for what we send: a few kilobytes
        keep_alive(connection)
        self.connection, self.lines = connection, Lines()
        self.peer, self.here = _plain(connection.getpeername()[0]), _plain(connection.getsockname()[0])
        self.since, self.told_at = time.monotonic(), 0.0
        self.nonce = secrets.token_hex(16)
        self.proven, self.node, self.admitted = False, None, False
        self.in_its_way = ""

    node: NodeInfo | None


class RendezvousServer:
    """A thread that receives nodes, from `__enter__` to `__exit__`.

    Attributes:
        gathered: set once enough nodes are there and agree.
        refusal: why the meeting failed, for all nodes alike; None while it has not.
        most: how many nodes were here at once, this one included.
        error: a defect of this thread.
    """

    def __init__(
        self, host: NodeInfo, listener: socket.socket, key: bytes, answer_message: dict[str, Any], place: str = ""
    ) -> None:
        """Receive nodes at `listener`.

        Args:
            host: the main node itself.
            listener: where the others come to; closed at the end.
            key: the run's secret.
            answer_message: what an admitted node is told.
            place: nonce of the file that tells where we are, if one does.
        """
        self._host, self._listener, self._key, self._answer_message, self._place = (
            host,
            listener,
            key,
            answer_message,
            place,
        )
        self.gathered, self.refusal, self.error = threading.Event(), "", None
        self.most = 1
        self._callers: list[_Connection] = []
        self._closing, self._farewell = threading.Event(), dict[str, Any]()
        self._leave_door, self._door_closed = threading.Event(), threading.Event()
        self._wrong_since = self._sent_away_at = 0.0
        self._sent_away, self._connected_nodes, self._wrong = "", list[NodeInfo](), None
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="meeting")

    error: BaseException | None
    _wrong: str | None

    def __enter__(self) -> Self:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Send away whoever still waits, with the reason why this node leaves."""
        if isinstance(error, ConfigError):
            self._farewell = {"error": str(error), "code": error.exit_code}
        else:
            self._farewell = {"error": "the main node has left: it was stopped, or its run has ended", "code": 1}
        self._closing.set()
        self._thread.join()

    @property
    def nodes(self) -> list[NodeInfo]:
        """All nodes that are here, this one first."""
        return [self._host, *(caller.node for caller in list(self._callers) if caller.node is not None)]

    @property
    def reached_at(self) -> str | None:
        """At which of our addresses another node reached us; one of another machine, if there is any."""
        here = [caller.here for caller in list(self._callers) if caller.node is not None]
        return next((address for address in here if not is_loopback(address)), here[0] if here else None)

    def close_door(self) -> None:
        """Let nobody in any more, so that another program may listen here; those who are in stay."""
        self._leave_door.set()
        self._door_closed.wait()

    def missing(self) -> str:
        """Who has not come yet, and who was sent away."""
        return missing(self.nodes) + (f" ({self._sent_away})" if self._sent_away else "")

    def _serve(self) -> None:
        try:
            while not self._closing.is_set():
                for ready, _ in self._selector.select(_TICK_S):
                    if ready.data is None:
                        self._accept()
                    else:
                        self._hear(ready.data)
                self._advance(time.monotonic())
                if self._leave_door.is_set() and not self._door_closed.is_set():
                    self._selector.unregister(self._listener)
                    self._listener.close()
                    self._door_closed.set()
        except BaseException as error:
            self.error = error
            raise
        finally:
            for caller in list(self._callers):
                if caller.proven and not caller.admitted:
                    self._send(caller, self._farewell)
                self._drop(caller)
            self._selector.close()
            self._listener.close()
            self._door_closed.set()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
            caller = _Connection(connection)
        except OSError:  # it is gone already
            return
        strangers = [other for other in self._callers if not other.proven]
        if len(strangers) >= _MAX_STRANGERS:
            self._drop(strangers[0])
        self._callers.append(caller)
        self._selector.register(connection, selectors.EVENT_READ, caller)
        self._send(caller, challenge(caller.nonce, self._place))

    def _hear(self, caller: _Connection) -> None:
        if caller not in self._callers:  # dropped in this round
            return
        try:
            data = caller.connection.recv(1 << 16)
            messages = caller.lines.feed(data)
        except (OSError, ValueError):
            data, messages = b"", []
        if not data:
            self._drop(caller)
        for message in messages:
            if caller in self._callers:
                self._answer(caller, message)

    def _answer(self, caller: _Connection, message: dict[str, Any]) -> None:
        if caller.node is not None:
            return  # it has said all
        if caller.proven:
            self._know(caller, message)
            return
        try:
            proof = answer(message, self._key, caller.nonce)
        except ConfigError as error:
            self._send_away(caller, str(error))
            return
        if proof is None:
            self._send_away(caller, KEEPS_APART)
            return
        caller.proven = True
        self._send(caller, {"proof": proof})

    def _know(self, caller: _Connection, message: dict[str, Any]) -> None:
        try:
            node = msgspec.convert(message, NodeInfo)
        except msgspec.ValidationError as error:
            self._refuse(caller, f"the main node does not understand this one: {error}")
            return
        for other in [one for one in self._callers if one.node is not None and one.node.process == node.process]:
            self._drop(other)  # it has lost that connection, and we have not noticed yet
        caller.node = node

    def _send_away(self, caller: _Connection, reason: str) -> None:
        """Somebody who does not belong here. If nodes are missing, it may be one of them: then this node ends, too."""
        self._sent_away, self._sent_away_at = f"a node at {caller.peer} was sent away: {reason}", time.monotonic()
        self._refuse(caller, reason)

    def _advance(self, now: float) -> None:
        for caller in [one for one in self._callers if one.node is None and now > one.since + GREETING_S]:
            self._drop(caller)
        waiting = [caller for caller in self._callers if caller.node is not None and not caller.admitted]
        if self.refusal:
            for caller in waiting:
                self._refuse(caller, self.refusal)
        elif self.gathered.is_set():
            for caller in waiting:
                self._receive_late(caller, now)
        else:
            self._gather(waiting, now)
        for caller in [one for one in waiting if not one.admitted and now > one.told_at + _TELL_S]:
            caller.told_at = now
            self._send(caller, {"waiting": caller.in_its_way or self.missing()})

    def _gather(self, waiting: list[_Connection], now: float) -> None:
        nodes = self.nodes
        if nodes != self._connected_nodes:
            self._connected_nodes, self._wrong, self.most = nodes, contradiction(nodes), max(self.most, len(nodes))
            self._wrong_since = (self._wrong_since or now) if self._wrong else 0.0
        if self._wrong is not None:
            if len(nodes) >= self._host.maximum or now > self._wrong_since + _SETTLE_S:
                self.refusal = self._wrong
        elif len(nodes) >= self._host.minimum:
            for caller in waiting:
                self._admit(caller)
            self.gathered.set()
        elif self._sent_away and now > self._sent_away_at + _SETTLE_S:
            self.refusal = f"{self._sent_away} ({missing(nodes)})"

    def _receive_late(self, caller: _Connection, now: float) -> None:
        assert caller.node is not None
        if (wrong := contradiction([self._host, caller.node])) is not None:
            self._refuse(caller, wrong)
            return
        present = [self._host, *(other.node for other in self._callers if other.admitted and other.node is not None)]
        caller.in_its_way = obstacle(caller.node, present) or ""
        if not caller.in_its_way:
            self._admit(caller)
        elif now > caller.since + _FREE_S:
            self._refuse(caller, caller.in_its_way)

    def _admit(self, caller: _Connection) -> None:
        caller.admitted = True
        self._send(caller, {"admitted": self._answer_message})

    def _refuse(self, caller: _Connection, reason: str) -> None:
        self._send(caller, {"error": reason, "code": ConfigError.exit_code})
        self._drop(caller)

    def _send(self, caller: _Connection, message: dict[str, Any]) -> None:
        try:
            send(caller.connection, message)
        except Dropped:
            self._drop(caller)

    def _drop(self, caller: _Connection) -> None:
        """Close a connection; what was sent still arrives."""
        if caller in self._callers:
            self._callers.remove(caller)
            self._selector.unregister(caller.connection)
            caller.connection.close()


def _plain(address: str) -> str:
    """An IPv4 address as such, where an IPv6 socket accepted it."""
    return address.removeprefix("::ffff:")
