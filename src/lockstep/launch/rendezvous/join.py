"""Join the other nodes, as the main node or as one of the others: `rendezvous`."""

import contextlib
import errno
import os
import secrets
import socket
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lockstep.distributed.network import init_file
from lockstep.distributed.network.interfaces import (
    endpoint,
    interface_of,
    is_local,
    is_loopback,
    listening_socket,
    reachable_addresses,
    resolve,
    towards,
)
from lockstep.distributed.network.store import Store
from lockstep.distributed.network.store_server import StoreClient
from lockstep.errors import ConfigError, RunError
from lockstep.launch.nodes import Nodes
from lockstep.launch.rendezvous.client import LocalError, RendezvousClient, is_alive, resolve_with_retries
from lockstep.launch.rendezvous.contradictions import contradiction
from lockstep.launch.rendezvous.handshake import NodeInfo, run_key, run_secret
from lockstep.launch.rendezvous.server import RendezvousServer
from lockstep.launch.rendezvous.waiting import Waiting

STORE_TIMEOUT_S = 60.0
"""Bound on one request to the main node's store: a short interruption of the network does not end a run."""
_POLL_S = 0.1
_KEEP_S = 0.5  # how often the main node checks that the shared file still has its address
_PORT_TAKEN_S = 2.0  # how long to look for another main node on a port in use
_STAND_IN_S = 4.0  # other nodes try to connect several times a second
_ALL_INTERFACES = ("0.0.0.0", "::")
_EXTERNAL = "192.0.2.1"  # a documentation address: the route to it is the one to other machines
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class NodeRendezvous:
    """The result of the rendezvous, for one node."""

    main: bool
    """Whether this node is the main one, which serves the store."""
    process: str
    """Identifies this node's launcher among those of the run."""
    address: str
    """This node's own address towards the others."""
    interface: str | None
    """The interface that has it."""
    main_address: str
    """Where this node reaches the main node."""
    key: bytes
    """32 bytes, shared by all nodes of this run only."""
    store: Store
    """The run's store, in the main node's memory."""
    connected: Callable[[], list[str]]
    """On the main node: `process` of all nodes that are connected now, this one first. Empty on the others."""
    torch_listener: socket.socket | None = None
    """The main node's listening socket for torch's own store; None on the others, and unless the run is elastic."""
    torch_port: int = 0
    """Its port; 0 unless the run is elastic."""


@contextlib.contextmanager
def rendezvous(
    nodes: Nodes, identity: Mapping[str, Any], *, cancelled: Callable[[], bool] = lambda: False
) -> Generator[NodeRendezvous]:
    """Join the other nodes. The main one goes on admitting those that come later, until the end of the block.

    `identity` must agree between nodes (see `lockstep.preflight.identity`); `cancelled` is polled ten times a second.

    Raises:
        ConfigError: the nodes contradict each other, or some do not come; the same on every node.
        RunError: the main node ended.
        Cancelled: this node is to give up.
    """
    waiting = Waiting(cancelled, nodes.join_timeout_s)
    if nodes.local_address and not is_local(nodes.local_address):
        raise ConfigError(f"--local-addr {nodes.local_address} is not an address of this machine, which has {_own()}")
    node = _node_info(nodes, identity)
    listener, local_error = _listener(nodes, waiting)
    if listener is not None:
        with _host(nodes, node, listener, waiting) as info:
            yield info
        return
    client = RendezvousClient(nodes, node, waiting, local_error)
    try:
        connection, admission = client.join()
    except ConfigError as error:
        if client.no_main_here and local_error is None:
            _stand_in(nodes, node, error, waiting)
        raise
    with contextlib.closing(connection):  # while it is open, this node is a member
        address = nodes.local_address or str(connection.socket.getsockname()[0])
        yield NodeRendezvous(
            main=False,
            process=node.process,
            address=address,
            interface=interface_of(address),
            main_address=str(connection.socket.getpeername()[0]),
            key=run_key(nodes.token, str(admission["salt"])),
            store=StoreClient(connection, STORE_TIMEOUT_S),
            connected=list,
            torch_port=int(admission["torch_port"]),
        )


@contextlib.contextmanager
def _host(nodes: Nodes, node: NodeInfo, listener: socket.socket, waiting: Waiting) -> Generator[NodeRendezvous]:
    bound, port = listener.getsockname()[:2]
    salt, nonce = secrets.token_hex(32), secrets.token_hex(16)
    all_interfaces = bound in _ALL_INTERFACES
    guess = nodes.local_address or (_towards_others() if all_interfaces else bound)
    with contextlib.ExitStack() as stack:
        torch_listener, torch_port = None, 0
        if nodes.elastic:
            torch_listener = stack.enter_context(listening_socket("" if bound == _ALL_INTERFACES[0] else bound, 0))
            torch_port = int(torch_listener.getsockname()[1])
        admission = {"torch_port": torch_port, "salt": salt}
        server = stack.enter_context(
            RendezvousServer(replace(node, address=guess), listener, run_secret(nodes), admission, nonce)
        )
        published = None
        if nodes.init_file is not None:
            own = (reachable_addresses() or [_LOOPBACK]) if all_interfaces else [bound]
            addresses = [address for address in own if bound != _ALL_INTERFACES[0] or ":" not in address]
            published = init_file.publish(nodes.init_file, addresses, port, nonce, alive=is_alive)
            stack.callback(init_file.withdraw, nodes.init_file, nonce)
        flag = f"--init-file {nodes.init_file}" if published else f"{nodes.setting} {endpoint(guess, port)}"
        _gather(nodes, server, waiting, published, flag)
        if nodes.rank_port == port:
            server.stop_listening()
        address = nodes.local_address or server.reached_at or guess
        yield NodeRendezvous(
            main=True,
            process=node.process,
            address=address,
            interface=interface_of(address),
            main_address=address,
            key=run_key(nodes.token, salt),
            store=server.store,
            connected=lambda: [one.process for one in server.nodes],
            torch_listener=torch_listener,
            torch_port=torch_port,
        )


def _gather(
    nodes: Nodes,
    server: RendezvousServer,
    waiting: Waiting,
    published: init_file.PublishedEndpoint | None,
    flag: str,
) -> None:
    """Wait until enough nodes are there and agree."""
    kept_at = time.monotonic()
    while not server.gathered.wait(_POLL_S):
        if server.error is not None:
            raise RunError(f"receiving other nodes failed: {server.error!r}") from server.error
        if server.refusal:
            raise ConfigError(server.refusal)
        if published is not None and nodes.init_file is not None and time.monotonic() > kept_at + _KEEP_S:
            init_file.keep(nodes.init_file, published, alive=is_alive)
            kept_at = time.monotonic()
        missing = max(nodes.minimum - len(server.nodes), 0)
        where = nodes.init_file or flag.partition(" ")[2]
        waiting(
            f"{missing} of {nodes.minimum} nodes at {where}: {server.missing()}",
            f"start each missing one with {flag}" + ("" if nodes.node_rank is None else " and its --node-rank"),
        )


def _stand_in(nodes: Nodes, node: NodeInfo, error: ConfigError, waiting: Waiting) -> None:
    """Listen at the endpoint for a while, to refuse nodes that expect the main one on this machine.

    Raises:
        ConfigError: the refusal, if any node came.
    """
    try:
        listener = listening_socket(_address_to_bind(nodes, resolve(nodes.host)), nodes.port)
    except ConfigError:  # another process listens here by now
        return
    address = nodes.local_address or _towards_others()
    with RendezvousServer(replace(node, address=address), listener, run_secret(nodes), {}) as server:
        end = time.monotonic() + _STAND_IN_S
        while not server.refusal and time.monotonic() < end:
            waiting(f"other nodes, to tell them: {error}")
            time.sleep(_POLL_S)
        if server.most > 1:
            raise ConfigError(server.refusal or contradiction(server.nodes))


def _listener(nodes: Nodes, waiting: Waiting) -> tuple[socket.socket | None, LocalError | None]:
    """The main node's listening socket; on another node None, and its error, if one is known already."""
    alone, rank = nodes.maximum == 1, nodes.node_rank
    if rank is not None and not 0 <= rank < nodes.maximum:
        error = ConfigError(
            f"--node-rank {rank} does not exist with --nnodes {nodes.maximum}; "
            f"node ranks go from 0 to {nodes.maximum - 1}"
        )
        if alone:
            raise error
        return None, LocalError(error)
    if not nodes.host:
        if rank is None and not alone:
            raise ConfigError("--init-file tells nobody which node is the main one; give each node its --node-rank")
        main = alone or rank == 0
        addresses = [_LOOPBACK] if alone else []
    else:
        addresses = resolve_with_retries(nodes, waiting)
        own = [address for address in addresses if is_local(address)]
        main = alone or (rank == 0 and bool(own or nodes.local_address)) or (rank is None and bool(own))
        if rank == 0 and not main:
            return None, LocalError(ConfigError(_not_here(nodes, addresses)))
        addresses = own or addresses
    if not main:
        return None, None
    try:
        return listening_socket(_address_to_bind(nodes, addresses), nodes.port, nodes.setting), None
    except ConfigError as error:
        if getattr(error.__cause__, "errno", None) != errno.EADDRINUSE:
            raise
        # Another main node on this machine may use the port.
        return None, LocalError(error, patience_s=_PORT_TAKEN_S, port_in_use=True)


def _address_to_bind(nodes: Nodes, addresses: Sequence[str]) -> str:
    """The address at which the main node listens: one interface, if the endpoint determines it."""
    if nodes.local_address:
        return nodes.local_address
    if nodes.maximum == 1:
        return addresses[0]
    if len(addresses) == 1 and not is_loopback(addresses[0]):
        return addresses[0]
    # With `localhost` or a file the interface is not known, and other nodes must be able to connect.
    reachable = addresses or reachable_addresses() or [_LOOPBACK]
    needs_ipv6 = any(":" in address for address in addresses) or all(":" in address for address in reachable)
    return _ALL_INTERFACES[1] if needs_ipv6 else ""


def _towards_others() -> str:
    """This machine's most likely address for others, before any of them has connected."""
    with contextlib.suppress(OSError):
        return towards(_EXTERNAL, 0)
    return next(iter(reachable_addresses()), _LOOPBACK)


def _node_info(nodes: Nodes, identity: Mapping[str, Any]) -> NodeInfo:
    return NodeInfo(
        process=secrets.token_hex(8),
        host=os.uname().nodename,
        address=nodes.local_address,
        node_rank=nodes.node_rank,
        minimum=nodes.minimum,
        maximum=nodes.maximum,
        nproc=nodes.nproc,
        run_id=nodes.run_id,
        identity=dict(identity),
        max_restarts=nodes.max_restarts,
    )


def _not_here(nodes: Nodes, addresses: Sequence[str]) -> str:
    called = nodes.host if nodes.host in addresses else f"{nodes.host} ({', '.join(addresses)})"
    return (
        f"--node-rank 0 is the main node, but {called} of {nodes.setting} is not an address of this machine, which has "
        f"{_own()}; start this node with another --node-rank, or all with this machine's address"
    )


def _own() -> str:
    return ", ".join(reachable_addresses()) or _LOOPBACK
