"""Serves a store over TCP, and the client of such a server.

A server sends a greeting to each client: the version of the protocol and a nonce. `StoreServer` then takes requests
from all of them. It is the store of JAX's ranks: like torch's `TCPStore` it does not authenticate connections, and
ranks prove the run's token through the names of their keys (`rank_store.py`). `lockstep.launch.rendezvous.server` is
the same server with authentication and membership: it takes requests only from nodes that it has admitted.
"""

import contextlib
import secrets
import selectors
import socket
import threading
import time
import weakref
from typing import Any, Generic, Literal, TypeVar

import msgspec

from lockstep.distributed.network.framing import (
    RECEIVE_SIZE,
    DisconnectedError,
    LineBuffer,
    MessageConnection,
    NotLockstepError,
    enable_keepalive,
    encode,
)
from lockstep.distributed.network.store import ANSWER_S, MemoryStore, StoreGoneError, wait_for_value

PROTOCOL = 2
"""Version of the messages between launchers, and between ranks that use our store."""
VERSION = "lockstep"
"""The key of the protocol's version in a greeting."""
_TICK_S = 0.1
_MAX_UNSENT = 1 << 24  # bytes that a client has not read yet; then it is dropped
_LAST_SEND_S = 1.0  # for what is unsent when the server closes


class ServedConnection:
    """The server's side of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        enable_keepalive(connection)
        self.socket = connection
        self.lines = LineBuffer()
        self.unsent = bytearray()
        self.closing = False  # to be closed once everything is sent
        self.peer = _without_ipv6_prefix(connection.getpeername()[0])
        self.own_address = _without_ipv6_prefix(connection.getsockname()[0])
        self.opened_at = time.monotonic()
        self.nonce = secrets.token_hex(16)


ConnectionT = TypeVar("ConnectionT", bound=ServedConnection)


class MessageServer(Generic[ConnectionT]):
    """A thread that serves all connections of a listening socket. Subclasses define what the messages mean.

    The listener is closed with the server; `connection_type` is the state of each connection; `greeting` is added to
    the greeting.

    Attributes:
        connections: all open ones, in the order in which they were accepted.
        error: what ended the thread, if that was a defect.
    """

    def __init__(
        self, listener: socket.socket, connection_type: type[ConnectionT], greeting: dict[str, Any] | None = None
    ) -> None:
        self.connections: list[ConnectionT] = []
        self.error: BaseException | None = None
        self._listener = listener
        self._connection_type = connection_type
        self._greeting = greeting or {}
        self._selector = selectors.DefaultSelector()
        self._close_requested = threading.Event()
        self._stop_listening_requested = threading.Event()
        self._not_listening = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="lockstep-store")

    def start(self) -> None:
        """Start to accept connections."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()

    def close(self) -> None:
        """Close all connections and the listening socket."""
        self._close_requested.set()
        self._thread.join()

    def stop_listening(self) -> None:
        """Free the port for another program; open connections stay."""
        self._stop_listening_requested.set()
        self._not_listening.wait()

    def send(self, connection: ConnectionT, message: dict[str, Any]) -> None:
        """Send a message without waiting for the client."""
        connection.unsent += encode(message)
        self._flush(connection)

    def send_and_close(self, connection: ConnectionT, message: dict[str, Any]) -> None:
        """Send a last message."""
        connection.closing = True
        self.send(connection, message)

    def drop(self, connection: ConnectionT) -> None:
        """Close a connection."""
        if connection in self.connections:
            self.connections.remove(connection)
            self._selector.unregister(connection.socket)
            connection.socket.close()

    def answer(self, connection: ConnectionT, store: MemoryStore, message: dict[str, Any]) -> None:
        """Answer one request to a store; drop a client that sends anything else."""
        reply = reply_to(store, message)
        if reply is None:
            self.drop(connection)
        else:
            self.send(connection, reply)

    # Subclasses override these methods; they run in the server's thread.

    def on_accept(self, connection: ConnectionT) -> None:
        """Called before a new connection is added."""

    def on_message(self, connection: ConnectionT, message: dict[str, Any]) -> None:
        """Called with each message of a client."""
        raise NotImplementedError

    def on_tick(self, now: float) -> None:
        """Called ten times a second, and after messages; `now` is `time.monotonic()`."""

    def on_close(self) -> None:
        """Called before the connections are closed."""

    def _serve(self) -> None:
        try:
            while not self._close_requested.is_set():
                for ready, events in self._selector.select(_TICK_S):
                    if ready.data is None:
                        self._accept()
                        continue
                    if events & selectors.EVENT_WRITE:
                        self._flush(ready.data)
                    if events & selectors.EVENT_READ:
                        self._receive(ready.data)
                self.on_tick(time.monotonic())
                if self._stop_listening_requested.is_set() and not self._not_listening.is_set():
                    self._selector.unregister(self._listener)
                    self._listener.close()
                    self._not_listening.set()
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.on_close()
            for connection in list(self.connections):
                self._flush_and_drop(connection)
            self._selector.close()
            self._listener.close()
            self._not_listening.set()

    def _accept(self) -> None:
        try:
            connection = self._connection_type(self._listener.accept()[0])
        except OSError:  # the client has closed it already
            return
        self.on_accept(connection)
        self.connections.append(connection)
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        self.send(connection, {VERSION: PROTOCOL, "nonce": connection.nonce, **self._greeting})

    def _receive(self, connection: ConnectionT) -> None:
        if connection not in self.connections:
            return
        try:
            data = connection.socket.recv(RECEIVE_SIZE)
            messages = connection.lines.feed(data)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            data, messages = b"", list[dict[str, Any]]()
        for message in messages:
            if connection in self.connections and not connection.closing:
                self.on_message(connection, message)
        if not data:
            self.drop(connection)

    def _flush(self, connection: ConnectionT) -> None:
        if connection not in self.connections:
            return
        try:
            while connection.unsent:
                del connection.unsent[: connection.socket.send(connection.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            connection.unsent.clear()
            self.drop(connection)
            return
        if len(connection.unsent) > _MAX_UNSENT or (connection.closing and not connection.unsent):
            self.drop(connection)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        self._selector.modify(connection.socket, events, connection)

    def _flush_and_drop(self, connection: ConnectionT) -> None:
        with contextlib.suppress(OSError):
            if connection.unsent:
                connection.socket.settimeout(_LAST_SEND_S)
                connection.socket.sendall(connection.unsent)
        self.drop(connection)


class StoreServer(MessageServer[ServedConnection]):
    """Serves a store to whoever connects, until the process ends or `close`."""

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(listener, ServedConnection)
        self.store = MemoryStore()
        self.start()

    def on_message(self, connection: ServedConnection, message: dict[str, Any]) -> None:
        """Answer one request."""
        self.answer(connection, self.store, message)


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    op: Literal["set", "get", "check", "add", "compare_set"]
    keys: list[str]
    value: str = ""
    expected: str = ""
    amount: int = 0


def reply_to(store: MemoryStore, message: dict[str, Any]) -> dict[str, Any] | None:
    """Apply one request to a store; returns the reply, None if the request is malformed."""
    try:
        request = msgspec.convert(message, _Request)
        if request.op == "check":
            return {"value": store.check(request.keys)}
        (key,) = request.keys
        match request.op:
            case "set":
                return {"value": store.set(key, request.value)}
            case "get":
                return {"value": store.get_nowait(key)}
            case "add":
                return {"value": store.add(key, request.amount)}
            case "compare_set":
                return {"value": store.compare_set(key, request.expected, request.value).decode()}
    except ValueError:  # msgspec's ValidationError is one
        return None


class StoreClient:
    """A store that another process serves, by a connection that is closed with this object.

    Any thread may use it; requests are answered one after another, each within `timeout_s`.
    """

    def __init__(self, connection: MessageConnection, timeout_s: float = ANSWER_S) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        weakref.finalize(self, connection.close)

    @classmethod
    def connect(cls, address: str, port: int, connect_s: float) -> "StoreClient":
        """Connect to a `StoreServer`.

        Raises:
            OSError: nothing listens there, or there is no route to it.
            TimeoutError: no server of Lockstep's protocol answers there.
        """
        opened = socket.create_connection((address, port), connect_s)
        connection = MessageConnection(opened)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if connection.receive(ANSWER_S).get(VERSION) != PROTOCOL:
                raise NotLockstepError("it speaks another version of Lockstep's protocol")
        except (DisconnectedError, NotLockstepError) as error:
            connection.close()
            raise TimeoutError(f"what listens there is not a store of Lockstep: {error}") from None
        return cls(connection)

    def set(self, key: str, value: str, /) -> None:
        """Set a value."""
        self._request({"op": "set", "keys": [key], "value": value})

    def get(self, key: str, /) -> bytes:
        """Wait for a key and return its value."""
        return wait_for_value(lambda key: self._request({"op": "get", "keys": [key]}), key).encode()

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys exist."""
        return bool(self._request({"op": "check", "keys": keys}))

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter that starts at 0; returns its new value."""
        return int(self._request({"op": "add", "keys": [key], "amount": amount}))

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set `desired` if the value is `expected` ("": the key does not exist); returns the value it has then."""
        request = {"op": "compare_set", "keys": [key], "expected": expected, "value": desired}
        return str(self._request(request)).encode()

    def _request(self, message: dict[str, Any]) -> Any:
        with self._lock:
            try:
                self._connection.send(message)
                return self._connection.receive(self._timeout_s)["value"]
            except NotLockstepError as error:
                self._connection.close()  # a late reply would be taken for that of the next request
                raise StoreGoneError(f"the store did not answer within {self._timeout_s:g} s") from error
            except (DisconnectedError, KeyError) as error:
                raise StoreGoneError(f"the store is gone ({error})") from error


def _without_ipv6_prefix(address: str) -> str:
    """The IPv4 address that an IPv6 socket accepted."""
    return address.removeprefix("::ffff:")
