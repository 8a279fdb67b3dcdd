"""A fixed number of nodes: the main one keeps what they tell each other, in memory, and a round begins when all ask.

Standard library only. Messages are JSON lines, and whoever connects proves first that it was admitted; see
`lockstep.launch.rendezvous`.
"""

import contextlib
import secrets
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Self

from lockstep.errors import ConfigError
from lockstep.launch.nodes import Nodes
from lockstep.launch.rendezvous import Cancelled, Met
from lockstep.launch.rendezvous.client import connect
from lockstep.launch.rendezvous.handshake import Dropped, Lines, keep_alive, proof, same, send
from lockstep.launch.round import Member, Round, asking, members, place_of
from lockstep.launch.variables import free_port

_ANSWER_S = 60.0  # bound on one question to the main node: a link that is cut for a moment is no end
_LOOK_S = 0.1
_CONNECT_S = 10.0


class FixedMembership:
    """This node among a fixed number of others, as a context manager; the main node hosts what they tell each other."""

    def __init__(self, nodes: Nodes, met: Met) -> None:
        self._nodes, self._met = nodes, met
        self._host = None if met.listener is None else _Host(met.listener, met.key, nodes.minimum)

    def __enter__(self) -> Self:
        if self._host is not None:
            self._host.start()
        with asking():
            self._line = _Line(self._met)
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()
        if self._host is not None:
            self._host.close()

    @property
    def main(self) -> bool:
        """Whether this node hosts what the others ask."""
        return self._host is not None

    def changed(self) -> bool:
        """No node is let in while a round goes on."""
        return False

    def join(self, failures: int, cancelled: Callable[[], bool]) -> Round:
        """Wait until all nodes are there for another start of all ranks.

        Args:
            failures: how many starts this node has seen fail.
            cancelled: polled; raises `Cancelled` once it is true.
        """
        nodes, met = self._nodes, self._met
        mine = Member.of(nodes, met.address, met.main_address, main=met.main, failures=failures)
        if met.main:
            mine = replace(mine, port=nodes.rank_port or free_port())
        with asking():
            begun = self._line.wait_for_all(asdict(mine), nodes.join_timeout_s, cancelled)
        number, every = int(begun["round"]), members(begun["every"])
        (first,) = (one for one in every if one.main)
        # How the others reach the main node, whose rank 0 is.
        address = next((one.main_address for one in every if not one.main), first.address)
        place = place_of(every, int(begun["index"]), address=address, port=first.port, token=met.key.hex())
        return Round(_Told(self._line, number), place, max(one.failures for one in every), number)


class _Told:
    """What has been told in one round."""

    def __init__(self, line: "_Line", number: int) -> None:
        self._line, self._prefix = line, f"{number}/"

    def check(self, keys: list[str], /) -> bool:
        return bool(self._ask("check", keys))

    def get(self, key: str, /) -> bytes:
        return str(self._ask("get", [key])).encode()

    def add(self, key: str, amount: int, /) -> int:
        return int(self._ask("add", [key], amount))

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        return str(self._ask("compare_set", [key], [expected, desired])).encode()

    def _ask(self, what: str, keys: list[str], value: Any = None) -> Any:
        return self._line.ask({"ask": what, "keys": [self._prefix + key for key in keys], "value": value})


class _Line:
    """The connection to the host. One question at a time, from any thread; a `RuntimeError` if no answer comes."""

    def __init__(self, met: Met) -> None:
        self._lock, self._lines, self._messages = threading.Lock(), Lines(), list[dict[str, Any]]()
        try:
            self._connection = connect(met.main_address, met.store_port, timeout_s=_CONNECT_S)
            keep_alive(self._connection)
        except OSError as error:
            raise RuntimeError(f"{met.main_address}:{met.store_port}: {error.strerror or error}") from error
        try:
            nonce = str(self._receive(_ANSWER_S)["nonce"])
            self._send({"proof": proof(met.key, "node", nonce, "")})
        except BaseException:
            self.close()
            raise

    def ask(self, question: dict[str, Any]) -> Any:
        with self._lock:
            self._send(question)
            return self._receive(_ANSWER_S)["answer"]

    def wait_for_all(self, mine: dict[str, Any], timeout_s: float, cancelled: Callable[[], bool]) -> dict[str, Any]:
        """Say that this node is ready; what the host tells all of them once they all are."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._send({"ask": "join", "value": mine})
            while (begun := self._heard()) is None:
                if cancelled():
                    raise Cancelled
                if time.monotonic() > deadline:
                    raise ConfigError(
                        f"not all nodes came within --join-timeout {timeout_s:g} s; start the others, or ask for "
                        "fewer: --nnodes"
                    )
        return begun["answer"]

    def close(self) -> None:
        self._connection.close()

    def _send(self, message: dict[str, Any]) -> None:
        self._connection.settimeout(_ANSWER_S)
        try:
            send(self._connection, message)
        except Dropped:
            raise RuntimeError("the connection is closed") from None

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while (message := self._heard()) is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no answer within {timeout_s:g} s")
        return message

    def _heard(self) -> dict[str, Any] | None:
        """The next message, if one comes within a moment."""
        if not self._messages:
            poller = select.poll()
            poller.register(self._connection, select.POLLIN)
            if not poller.poll(1000 * _LOOK_S):
                return None
            try:
                data = self._connection.recv(1 << 16)
            except OSError as error:
                raise RuntimeError(error.strerror or str(error)) from error
            if not data:
                raise RuntimeError("the connection is closed")
            self._messages = self._lines.feed(data)
        return self._messages.pop(0) if self._messages else None


class _Node:
    """A connection to the host."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(1.0)  # for what is sent: a few kilobytes
        keep_alive(connection)
        self.connection, self.lines, self.nonce = connection, Lines(), secrets.token_hex(16)
        self.proven, self.ready = False, None

    ready: dict[str, Any] | None
    """What it told of itself when it became ready for the next round."""


class _Host(threading.Thread):
    """Answers all nodes, the main one too, until it is closed."""

    def __init__(self, listener: socket.socket, key: bytes, num_nodes: int) -> None:
        super().__init__(daemon=True, name="nodes")
        self._listener, self._key, self._num_nodes = listener, key, num_nodes
        self._connected_nodes: list[_Node] = []
        self._values: dict[str, Any] = {}
        self._rounds, self._closing = 0, threading.Event()
        self._selector = selectors.DefaultSelector()

    def close(self) -> None:
        self._closing.set()
        self.join()

    def run(self) -> None:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while not self._closing.is_set():
            for ready, _ in self._selector.select(_LOOK_S):
                if ready.data is None:
                    self._accept()
                else:
                    self._hear(ready.data)
        for node in list(self._connected_nodes):
            self._drop(node)
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it may be gone already
            node = _Node(self._listener.accept()[0])
            self._connected_nodes.append(node)
            self._selector.register(node.connection, selectors.EVENT_READ, node)
            self._send(node, {"nonce": node.nonce})

    def _hear(self, node: _Node) -> None:
        try:
            data = node.connection.recv(1 << 16)
            messages = node.lines.feed(data)
        except (OSError, ValueError):
            data, messages = b"", list[dict[str, Any]]()
        for message in messages:
            if node.proven:
                self._answer(node, message)
            elif same(message.get("proof"), proof(self._key, "node", node.nonce, "")):
                node.proven = True
            else:
                data = b""
                break
        if not data:
            self._drop(node)

    def _answer(self, node: _Node, message: dict[str, Any]) -> None:
        value: Any = message.get("value")
        if message["ask"] == "join":
            node.ready = value
            self._begin()
            return
        keys, values = message["keys"], self._values
        match message["ask"]:
            case "check":
                answer = all(key in values for key in keys)
            case "get":
                answer = values[keys[0]]
            case "add":
                answer = values[keys[0]] = values.get(keys[0], 0) + value
            case _:  # compare_set
                if values.get(keys[0], "") == value[0]:
                    values[keys[0]] = value[1]
                answer = values[keys[0]]
        self._send(node, {"answer": answer})

    def _begin(self) -> None:
        """A round, if all nodes are ready."""
        ready = [node for node in self._connected_nodes if node.ready is not None]
        if len(ready) < self._num_nodes:
            return
        every = [node.ready for node in ready]
        for index, node in enumerate(ready):
            node.ready = None
            self._send(node, {"answer": {"round": self._rounds, "every": every, "index": index}})
        self._rounds += 1

    def _send(self, node: _Node, message: dict[str, Any]) -> None:
        try:
            send(node.connection, message)
        except Dropped:
            self._drop(node)

    def _drop(self, node: _Node) -> None:
        if node in self._connected_nodes:
            self._connected_nodes.remove(node)
            self._selector.unregister(node.connection)
            node.connection.close()
