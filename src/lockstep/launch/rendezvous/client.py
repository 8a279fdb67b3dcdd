"""The side of a node that comes to the main one: finds it, says who it is, hears the verdict."""

import errno
import math
import os
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lockstep.distributed.network import init_file
from lockstep.distributed.network.interfaces import endpoint, family_of, is_local, is_loopback, resolve
from lockstep.errors import ConfigError, RunError
from lockstep.launch.nodes import Nodes
from lockstep.launch.rendezvous.handshake import GREETING_S, Connection, Dropped, NodeInfo, Stranger, keep_alive, secret
from lockstep.launch.rendezvous.waiting import Waiting

_CONNECT_S = 3.0  # for one address; a machine that is there answers in milliseconds
_IN_USE_S = 3.0  # for what took the port of this main node to say that it is another
_ALIVE_S = 5.0  # for the run of a shared file to answer
_PAUSE_S = 0.2
_LOOK_S = 0.1
_PATIENCE_S = 8.0  # with what will hardly mend itself
_TELL_S = 15.0  # how long to look for the main node to tell it what is wrong here
_CLOSED_S = 5.0  # with a port that is open and says nothing: a main node that is just ending does so, too
_SILENCE_S = 30.0  # the main node speaks every 2 s to those who wait


@dataclass(frozen=True, slots=True)
class Known:
    """What is wrong on this node already. The main node is told all the same, if it can be: the others shall hear."""

    error: ConfigError
    patience_s: float = field(default_factory=lambda: _TELL_S)
    """How long to look for the main node."""
    port_in_use: bool = False
    """Whether it is that the main node's port was taken, here: then another main node may be what took it."""


class RendezvousClient:
    """One node's way to the main node.

    Attributes:
        nobody_here: whether it leads to this machine itself, and no main node is here.
    """

    def __init__(self, nodes: Nodes, node: NodeInfo, waiting: Waiting, known: Known | None = None) -> None:
        self._nodes, self._node_info, self._waiting, self._known = nodes, node, waiting, known
        self._where = endpoint(nodes.host, nodes.port) if nodes.host else ""
        self._awaited = f"the main node at {self._where}"
        self._trouble, self._since, self._heard = "", time.monotonic(), False
        self.nobody_here = False

    def join(self) -> tuple[socket.socket, dict[str, Any]]:
        """The open connection, and what the main node tells those it lets in.

        Raises:
            ConfigError: the main node cannot be found, or said no.
            RunError: the main node ended.
            Cancelled: this node was asked to give up.
        """
        try:
            while True:
                addresses, port = self._door()
                if (connection := self._connected(addresses, port)) is not None:
                    keep_alive(connection)
                    try:
                        return connection, self._verdict(Connection(connection, self._poll))
                    except Dropped:  # it may come back
                        connection.close()
                    except BaseException:
                        connection.close()
                        raise
                self._pause()
        except ConfigError as error:
            if self._known is None or error is self._known.error:
                raise
            if not self._heard:
                raise self._known.error from error
            if self._known.port_in_use and (self._nodes.node_rank == 0 or self._nodes.maximum == 1):
                raise ConfigError(f"{self._known.error} (a main node is there and says: {error})") from error
            raise

    def _door(self) -> tuple[Sequence[str], int]:
        """Where the main node is."""
        nodes = self._nodes
        if nodes.init_file is not None:
            patience_s = math.inf if self._known is None else self._known.patience_s
            place = init_file.find(
                nodes.init_file,
                min(self._waiting.deadline, self._since + patience_s),
                alive=lambda place: answers(place, self._poll),
                waiting=self._waiting,
                writer="node 0",
            )
            self._where = endpoint(place.addresses[0], place.port)
            return place.addresses, place.port
        return resolved(nodes, self._waiting), nodes.port

    def _connected(self, addresses: Sequence[str], port: int) -> socket.socket | None:
        """A connection to the first address that takes one; None if none does now, but perhaps later."""
        failures: dict[str, OSError] = {}
        began = time.monotonic()  # silence counts from here
        for address in addresses:
            try:
                return connect(address, port, self._poll, own=self._nodes.local_address)
            except OSError as error:
                failures[address] = error
        refused = [address for address, error in failures.items() if isinstance(error, ConnectionRefusedError)]
        if not refused:
            error = ConfigError(f"{self._setting}: {_unreachable(port, failures)}")
            self._troubled("way", error, _patience(self._nodes), began)
        elif self._nodes.init_file is None and all(is_local(address) for address in refused):
            self.nobody_here = True
            self._troubled("own", ConfigError(self._nobody_here(refused[0])), _PATIENCE_S)
            self.nobody_here = False
        else:
            self._troubled("refused", None, math.inf)
        return None

    def _verdict(self, call: Connection) -> dict[str, Any]:
        """Introduce this node and wait for what the main node says."""
        try:
            call.place(_IN_USE_S if self._known is not None and self._known.port_in_use else GREETING_S)
        except Stranger as reason:
            raise ConfigError(self._other(str(reason))) from None
        except Dropped:
            self._troubled("closed", ConfigError(self._other("it closes connections at once")), _CLOSED_S)
            raise
        self._trouble, self._heard = "", True
        try:
            address = self._nodes.local_address or str(call.connection.getsockname()[0])
            call.introduce(replace(self._node_info, address=address), secret(self._nodes))
            while True:
                message = call.receive(_SILENCE_S)
                if "admitted" in message:
                    return message["admitted"]
                if "error" in message:
                    kind = ConfigError if message.get("code") == ConfigError.exit_code else RunError
                    raise kind(str(message["error"]))
                self._awaited = f"a place at {self._where}: {message.get('waiting')}"
        except Stranger:  # silent after it had proved itself: its machine is gone
            raise Dropped from None

    def _troubled(self, kind: str, error: ConfigError | None, patience_s: float, since: float | None = None) -> None:
        """Note what keeps us from the main node; raises its error once it has lasted too long."""
        now = time.monotonic()
        if kind != self._trouble:
            self._trouble, self._since = kind, now if since is None else since
        self._heard, self._awaited = False, f"the main node at {self._where}"
        if self._known is not None:
            self._awaited += f" (to tell it: {_short(self._known.error)})"
            error, patience_s = self._known.error, min(patience_s, self._known.patience_s)
        elif error is not None:
            self._awaited += f" ({_short(error)})"
        if error is not None and now > self._since + patience_s:
            raise error

    def _poll(self) -> None:
        self._waiting(self._awaited, "start node 0 there, or correct the address")

    def _pause(self) -> None:
        self._poll()
        time.sleep(_PAUSE_S)

    @property
    def _setting(self) -> str:
        """What says where the main node is."""
        return (
            f"{self._nodes.setting} {self._where}"
            if self._nodes.init_file is None
            else f"--init-file {self._nodes.init_file}"
        )

    def _other(self, reason: str) -> str:
        return (
            f"{self._setting}: what answers there is not the main node of a Lockstep run ({reason}); "
            "use another port on all nodes, or the right address"
        )

    def _nobody_here(self, address: str) -> str:
        nodes = self._nodes
        which = "loopback address" if is_loopback(address) else "own address"
        is_it = "" if nodes.host == address else f"{nodes.host} is {address} on this machine. "
        return (
            f"{nodes.setting} {self._where}: {is_it}{address} is this machine's {which}, and no main node listens "
            f"here; use the address of the main node: {nodes.setting} IP_OF_MAIN:{nodes.port}"
        )


def resolved(nodes: Nodes, waiting: Waiting) -> list[str]:
    """The addresses of the endpoint. A name that has none is tried again for a while."""
    deadline = time.monotonic() + _patience(nodes)
    while True:
        try:
            return resolve(nodes.host)
        except ConfigError as error:
            if time.monotonic() > deadline:
                raise ConfigError(f"{nodes.setting} {endpoint(nodes.host, nodes.port)}: {error}") from None
            waiting(f"an address of the main node ({_short(error)})")
        time.sleep(_PAUSE_S)


def _patience(nodes: Nodes) -> float:
    """A pod's name exists, and leads somewhere, once the pod has its place: that may take longer than any mistake."""
    return nodes.join_timeout_s if "KUBERNETES_SERVICE_HOST" in os.environ else _PATIENCE_S


def connect(
    address: str, port: int, poll: Callable[[], None] = lambda: None, *, own: str = "", timeout_s: float = _CONNECT_S
) -> socket.socket:
    """A connection, or an OSError.

    Args:
        address: a numeric one.
        port: the port there.
        poll: called ten times a second; may raise.
        own: which of this machine's addresses to use, if it matters.
        timeout_s: bound.
    """
    connection = socket.socket(family_of(address), socket.SOCK_STREAM)
    try:
        if own and family_of(own) == family_of(address):
            connection.bind((own, 0))
        connection.setblocking(False)
        code, deadline = connection.connect_ex((address, port)), time.monotonic() + timeout_s
        if code == errno.EINPROGRESS:
            poller = select.poll()
            poller.register(connection, select.POLLOUT)
            while not poller.poll(1000 * _LOOK_S):
                poll()
                if time.monotonic() > deadline:
                    raise TimeoutError(errno.ETIMEDOUT, f"no answer within {timeout_s:g} s")
            code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
    except BaseException:
        connection.close()
        raise
    return connection


def answers(place: init_file.PublishedEndpoint, poll: Callable[[], None] = lambda: None) -> bool:
    """Whether the main node that wrote a shared file is there."""
    for address in place.addresses:
        try:
            with connect(address, place.port, poll) as connection:
                if Connection(connection, poll).place(_ALIVE_S) == place.nonce:
                    return True
        except (OSError, Dropped, Stranger):
            continue
    return False


def _unreachable(port: int, failures: Mapping[str, OSError]) -> str:
    said = ", ".join(f"{endpoint(address, port)} ({error.strerror})" for address, error in failures.items())
    return (
        f"the main node cannot be reached: {said}; check the address, that its machine lets others in at port {port} "
        "(firewall), and that this machine has an interface in that network"
    )


def _short(error: ConfigError) -> str:
    """What is wrong, without the way out."""
    return str(error).partition(";")[0]
