"""A node's side of the rendezvous: find the main node, authenticate, wait to be admitted."""

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
from lockstep.distributed.network.framing import (
    DisconnectedError,
    MessageConnection,
    NotLockstepError,
    enable_keepalive,
)
from lockstep.distributed.network.interfaces import endpoint, family_of, is_local, is_loopback, resolve
from lockstep.errors import ConfigError, RunError
from lockstep.launch.nodes import Nodes
from lockstep.launch.rendezvous.handshake import HANDSHAKE_S, NodeInfo, introduce, receive_greeting, run_secret
from lockstep.launch.rendezvous.waiting import Waiting

_CONNECT_S = 3.0  # per address; a machine that is up accepts in milliseconds
_PORT_TAKEN_S = 3.0  # for another main node, which uses this one's port, to send its greeting
_ALIVE_S = 5.0  # for the run of a shared file to send its greeting
_PAUSE_S = 0.2
_POLL_S = 0.1
_PATIENCE_S = 8.0  # for failures that are rarely temporary
_REPORT_S = 15.0  # how long to look for the main node to report what is wrong on this node
_CLOSED_S = 5.0  # for a port that closes connections at once, as that of an ending main node does
_SILENCE_S = 30.0  # the main node sends a message every 2 s to nodes that wait


@dataclass(frozen=True, slots=True)
class LocalError:
    """An error of this node before it joins. It still joins, if it can, so that all nodes fail with the same error."""

    error: ConfigError
    patience_s: float = field(default_factory=lambda: _REPORT_S)
    """How long to look for the main node."""
    port_in_use: bool = False
    """Whether the main node's port was taken on this host: then another main node may have taken it."""


class RendezvousClient:
    """Finds the main node and joins it.

    Attributes:
        no_main_here: whether the endpoint is this machine itself, and no main node listens here.
    """

    def __init__(self, nodes: Nodes, node: NodeInfo, waiting: Waiting, local_error: LocalError | None = None) -> None:
        self.no_main_here = False
        self._nodes = nodes
        self._node = node
        self._waiting = waiting
        self._local_error = local_error
        self._endpoint = endpoint(nodes.host, nodes.port) if nodes.host else ""
        self._awaited = f"the main node at {self._endpoint}"
        self._greeted = False
        self._failure = ""
        self._failing_since = time.monotonic()

    def join(self) -> tuple[MessageConnection, dict[str, Any]]:
        """Wait to be admitted; returns the open connection and the main node's message to admitted nodes.

        Raises:
            ConfigError: the main node cannot be found, or refused this node.
            RunError: the main node ended.
            Cancelled: this node is to give up.
        """
        try:
            while True:
                addresses, port = self._locate()
                if (opened := self._connect(addresses, port)) is not None:
                    enable_keepalive(opened)
                    connection = MessageConnection(opened, self._poll)
                    try:
                        admission = self._wait_for_admission(connection)
                    except DisconnectedError:  # the main node may come back
                        connection.close()
                    except BaseException:
                        connection.close()
                        raise
                    else:
                        connection.poll = lambda: None
                        return connection, admission
                self._pause()
        except ConfigError as error:
            local = self._local_error
            if local is None or error is local.error:
                raise
            if not self._greeted:
                raise local.error from error
            if local.port_in_use and (self._nodes.node_rank == 0 or self._nodes.maximum == 1):
                raise ConfigError(f"{local.error} (a main node is there and says: {error})") from error
            raise

    def _locate(self) -> tuple[Sequence[str], int]:
        nodes = self._nodes
        if nodes.init_file is None:
            return resolve_with_retries(nodes, self._waiting), nodes.port
        patience_s = math.inf if self._local_error is None else self._local_error.patience_s
        published = init_file.find(
            nodes.init_file,
            min(self._waiting.deadline, self._failing_since + patience_s),
            alive=lambda published: is_alive(published, self._poll),
            waiting=self._waiting,
            writer="node 0",
        )
        self._endpoint = endpoint(published.addresses[0], published.port)
        return published.addresses, published.port

    def _connect(self, addresses: Sequence[str], port: int) -> socket.socket | None:
        """A connection to the first address that accepts one; None to try again."""
        failures: dict[str, OSError] = {}
        began = time.monotonic()
        for address in addresses:
            try:
                return connect(address, port, self._poll, own=self._nodes.local_address)
            except OSError as error:
                failures[address] = error
        refused = [address for address, error in failures.items() if isinstance(error, ConnectionRefusedError)]
        if not refused:
            error = ConfigError(f"{self._setting}: {_unreachable(port, failures)}")
            self._record_failure("unreachable", error, _patience(self._nodes), since=began)
        elif self._nodes.init_file is None and all(is_local(address) for address in refused):
            self.no_main_here = True
            self._record_failure("refused here", ConfigError(self._no_main_here(refused[0])), _PATIENCE_S)
            self.no_main_here = False
        else:
            self._record_failure("refused", None, math.inf)
        return None

    def _wait_for_admission(self, connection: MessageConnection) -> dict[str, Any]:
        port_in_use = self._local_error is not None and self._local_error.port_in_use
        try:
            greeting = receive_greeting(connection, _PORT_TAKEN_S if port_in_use else HANDSHAKE_S)
        except NotLockstepError as reason:
            raise ConfigError(self._not_main_node(str(reason))) from None
        except DisconnectedError:
            error = ConfigError(self._not_main_node("it closes connections at once"))
            self._record_failure("closed", error, _CLOSED_S)
            raise
        self._failure = ""
        self._greeted = True
        try:
            address = self._nodes.local_address or str(connection.socket.getsockname()[0])
            introduce(connection, greeting, replace(self._node, address=address), run_secret(self._nodes))
            while True:
                message = connection.receive(_SILENCE_S)
                if "admitted" in message:
                    return message["admitted"]
                if "error" in message:
                    kind = ConfigError if message.get("code") == ConfigError.exit_code else RunError
                    raise kind(str(message["error"]))
                self._awaited = f"a place at {self._endpoint}: {message.get('waiting')}"
        except NotLockstepError:  # no message from an authenticated main node: its machine has vanished
            raise DisconnectedError from None

    def _record_failure(
        self, kind: str, error: ConfigError | None, patience_s: float, since: float | None = None
    ) -> None:
        """Record why this node cannot join; raises `error` once that has lasted too long."""
        now = time.monotonic()
        if kind != self._failure:
            self._failure = kind
            self._failing_since = now if since is None else since
        self._greeted = False
        self._awaited = f"the main node at {self._endpoint}"
        if self._local_error is not None:
            self._awaited += f" (to tell it: {_without_advice(self._local_error.error)})"
            error, patience_s = self._local_error.error, min(patience_s, self._local_error.patience_s)
        elif error is not None:
            self._awaited += f" ({_without_advice(error)})"
        if error is not None and now > self._failing_since + patience_s:
            raise error

    def _poll(self) -> None:
        self._waiting(self._awaited, "" if self._greeted else "start node 0 there, or correct the address")

    def _pause(self) -> None:
        self._poll()
        time.sleep(_PAUSE_S)

    @property
    def _setting(self) -> str:
        return (
            f"{self._nodes.setting} {self._endpoint}"
            if self._nodes.init_file is None
            else f"--init-file {self._nodes.init_file}"
        )

    def _not_main_node(self, reason: str) -> str:
        return (
            f"{self._setting}: what answers there is not the main node of a Lockstep run ({reason}); "
            "use another port on all nodes, or the right address"
        )

    def _no_main_here(self, address: str) -> str:
        nodes = self._nodes
        which = "loopback address" if is_loopback(address) else "own address"
        is_it = "" if nodes.host == address else f"{nodes.host} is {address} on this machine. "
        return (
            f"{nodes.setting} {self._endpoint}: {is_it}{address} is this machine's {which}, and no main node listens "
            f"here; use the address of the main node: {nodes.setting} IP_OF_MAIN:{nodes.port}"
        )


def resolve_with_retries(nodes: Nodes, waiting: Waiting) -> list[str]:
    """The addresses of the endpoint. A name that does not resolve is retried for a while."""
    deadline = time.monotonic() + _patience(nodes)
    while True:
        try:
            return resolve(nodes.host)
        except ConfigError as error:
            if time.monotonic() > deadline:
                raise ConfigError(f"{nodes.setting} {endpoint(nodes.host, nodes.port)}: {error}") from None
            waiting(
                f"an address of the main node ({_without_advice(error)})",
                f"correct {nodes.setting}, or give the address as a number",
            )
        time.sleep(_PAUSE_S)


def _patience(nodes: Nodes) -> float:
    """How long to retry. In Kubernetes a pod's name resolves only once the pod is scheduled, which may take long."""
    return nodes.join_timeout_s if "KUBERNETES_SERVICE_HOST" in os.environ else _PATIENCE_S


def connect(
    address: str, port: int, poll: Callable[[], None] = lambda: None, *, own: str = "", timeout_s: float = _CONNECT_S
) -> socket.socket:
    """Open a connection to a numeric address, from this machine's address `own`, if given. Raises OSError.

    `poll` is called ten times a second, and may raise.
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
            while not poller.poll(1000 * _POLL_S):
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


def is_alive(published: init_file.PublishedEndpoint, poll: Callable[[], None] = lambda: None) -> bool:
    """Whether the main node that wrote a shared file listens there."""
    for address in published.addresses:
        try:
            with connect(address, published.port, poll) as opened:
                if receive_greeting(MessageConnection(opened, poll), _ALIVE_S).get("place") == published.nonce:
                    return True
        except (OSError, DisconnectedError, NotLockstepError):
            continue
    return False


def _unreachable(port: int, failures: Mapping[str, OSError]) -> str:
    errors = ", ".join(f"{endpoint(address, port)} ({error.strerror})" for address, error in failures.items())
    return (
        f"the main node cannot be reached: {errors}; check the address, that its machine lets others in at port {port} "
        "(firewall), and that this machine has an interface in that network"
    )


def _without_advice(error: ConfigError) -> str:
    """The first part of a message, without the way out."""
    return str(error).partition(";")[0]
