"""Nodes meet before they start any rank: who does not belong, or does not fit, is told so, and so are all others.

One node is the main one; the others come to it. Whatever is wrong is found here, by plain sockets and with a sentence,
instead of later by a library that waits.
"""

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
from lockstep.errors import ConfigError, RunError
from lockstep.launch.nodes import Nodes
from lockstep.launch.rendezvous.client import Known, RendezvousClient, answers, resolved
from lockstep.launch.rendezvous.contradictions import contradiction
from lockstep.launch.rendezvous.handshake import NodeInfo, run_key, secret
from lockstep.launch.rendezvous.server import RendezvousServer
from lockstep.launch.rendezvous.waiting import Cancelled, Waiting

__all__ = ["Cancelled", "Met", "meet"]

_LOOK_S = 0.1
_KEEP_S = 0.5  # how often the main node looks whether the shared file is still its own
_IN_USE_S = 2.0  # for the main node that may have taken our port to take a connection
_STAND_IN_S = 4.0  # whoever looks for the main node comes by several times a second
_EVERYWHERE = ("0.0.0.0", "::")
_ANYWHERE = "192.0.2.1"  # no machine has it: asks for the way to the rest of the world
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Met:
    """What a node knows once the nodes have met."""

    main: bool
    """Whether this node hosts the store."""
    address: str
    """This node's own address towards the others."""
    interface: str | None
    """The interface that has it."""
    main_address: str
    """Where this node reaches the main node."""
    store_port: int
    """Where the main node's store listens."""
    listener: socket.socket | None
    """The main node's socket for that store, listening; None on the others."""
    key: bytes
    """The same on all nodes of this run, and on no other: 32 bytes."""


@contextlib.contextmanager
def meet(nodes: Nodes, identity: Mapping[str, Any], *, cancelled: Callable[[], bool] = lambda: False) -> Generator[Met]:
    """Meet the other nodes; the main one goes on receiving those that come later, until the end of the block.

    Args:
        nodes: what the flags say.
        identity: what must agree between nodes; see `lockstep.preflight.identity`.
        cancelled: asked ten times a second; raises `Cancelled` once it is true.

    Raises:
        ConfigError: the nodes do not fit together, or do not all come; the same on every node.
        RunError: the main node ended.
        Cancelled: this node was asked to give up.
    """
    waiting = Waiting(cancelled, nodes.join_timeout_s)
    if nodes.local_address and not is_local(nodes.local_address):
        raise ConfigError(f"--local-addr {nodes.local_address} is not an address of this machine, which has {_own()}")
    node = _node_info(nodes, identity)
    listener, known = _listener(nodes, waiting)
    if listener is not None:
        with _host(nodes, node, listener, waiting) as met:
            yield met
        return
    caller = RendezvousClient(nodes, node, waiting, known)
    try:
        connection, message = caller.join()
    except ConfigError as error:
        if caller.nobody_here and known is None:
            _stand_in(nodes, node, error, waiting)
        raise
    with connection:  # open to the end: this node holds its place with it
        address = nodes.local_address or str(connection.getsockname()[0])
        main_address = str(connection.getpeername()[0])
        key = run_key(nodes.token, str(message["salt"]))
        yield Met(False, address, interface_of(address), main_address, int(message["store_port"]), None, key)


@contextlib.contextmanager
def _host(nodes: Nodes, node: NodeInfo, listener: socket.socket, waiting: Waiting) -> Generator[Met]:
    """The main node's part."""
    bound, port = listener.getsockname()[:2]
    salt, nonce = secrets.token_hex(32), secrets.token_hex(16)
    everywhere = bound in _EVERYWHERE
    guess = nodes.local_address or (_towards_others() if everywhere else bound)
    with listening_socket("" if bound == _EVERYWHERE[0] else bound, 0) as store:
        store_port = int(store.getsockname()[1])
        message = {"store_port": store_port, "salt": salt}
        with RendezvousServer(replace(node, address=guess), listener, secret(nodes), message, nonce) as server:
            place = None
            if nodes.init_file is not None:
                ours = (reachable_addresses() or [_LOOPBACK]) if everywhere else [bound]
                where = [address for address in ours if bound != _EVERYWHERE[0] or ":" not in address]
                place = init_file.publish(nodes.init_file, where, port, nonce, alive=answers)
            try:
                how = f"--init-file {nodes.init_file}" if place else f"{nodes.setting} {endpoint(guess, port)}"
                _gather(nodes, server, waiting, place, how)
                if nodes.rank_port == port:
                    server.close_door()
                address = nodes.local_address or server.reached_at or guess
                key = run_key(nodes.token, salt)
                yield Met(True, address, interface_of(address), address, store_port, store, key)
            finally:
                if nodes.init_file is not None:
                    init_file.withdraw(nodes.init_file, nonce)


def _gather(
    nodes: Nodes, server: RendezvousServer, waiting: Waiting, place: init_file.PublishedEndpoint | None, how: str
) -> None:
    """Until enough nodes are there and agree."""
    looked = time.monotonic()
    while not server.gathered.wait(_LOOK_S):
        if server.error is not None:
            raise RunError(f"receiving other nodes failed: {server.error!r}") from server.error
        if server.refusal:
            raise ConfigError(server.refusal)
        if place is not None and nodes.init_file is not None and time.monotonic() > looked + _KEEP_S:
            init_file.keep(nodes.init_file, place, alive=answers)
            looked = time.monotonic()
        came, where = len(server.nodes), nodes.init_file or how.partition(" ")[2]
        waiting(
            f"{max(nodes.minimum - came, 0)} of {nodes.minimum} nodes at {where}: {server.missing()}",
            f"start each missing one with {how}" + ("" if nodes.node_rank is None else " and its --node-rank"),
        )


def _stand_in(nodes: Nodes, node: NodeInfo, error: ConfigError, waiting: Waiting) -> None:
    """Tell those who come to this machine, in the belief that the main node is here, that it is not.

    Raises:
        ConfigError: what they were told, if anybody came.
    """
    try:
        listener = listening_socket(_bound_to(nodes, resolve(nodes.host)), nodes.port)
    except ConfigError:  # somebody listens here now
        return
    address = nodes.local_address or _towards_others()
    with RendezvousServer(replace(node, address=address), listener, secret(nodes), {}) as server:
        end = time.monotonic() + _STAND_IN_S
        while not server.refusal and time.monotonic() < end:
            waiting(f"other nodes, to tell them: {error}")
            time.sleep(_LOOK_S)
        if server.most > 1:
            raise ConfigError(server.refusal or contradiction(server.nodes))


def _listener(nodes: Nodes, waiting: Waiting) -> tuple[socket.socket | None, Known | None]:
    """The socket at which this node receives the others, if it is the main one; else what is wrong here already."""
    alone, rank = nodes.maximum == 1, nodes.node_rank
    if rank is not None and not 0 <= rank < nodes.maximum:
        error = ConfigError(
            f"--node-rank {rank} does not exist with --nnodes {nodes.maximum}; "
            f"node ranks go from 0 to {nodes.maximum - 1}"
        )
        if alone:
            raise error
        return None, Known(error)
    if not nodes.host:
        if rank is None and not alone:
            raise ConfigError("--init-file tells nobody which node is the main one; give each node its --node-rank")
        main, where = alone or rank == 0, [_LOOPBACK] if alone else []
    else:
        where = resolved(nodes, waiting)
        own = [address for address in where if is_local(address)]
        main = alone or (rank == 0 and bool(own or nodes.local_address)) or (rank is None and bool(own))
        if rank == 0 and not main:
            return None, Known(ConfigError(_not_here(nodes, where)))
        where = own or where
    if not main:
        return None, None
    try:
        return listening_socket(_bound_to(nodes, where), nodes.port, nodes.setting), None
    except ConfigError as error:
        if getattr(error.__cause__, "errno", None) != errno.EADDRINUSE:
            raise
        return None, Known(
            error, patience_s=_IN_USE_S, port_in_use=True
        )  # perhaps by the main node, on this machine, too


def _bound_to(nodes: Nodes, where: Sequence[str]) -> str:
    """The address at which the main node receives: no wider than it must be."""
    if nodes.local_address:
        return nodes.local_address
    if nodes.maximum == 1:
        return where[0]
    if len(where) == 1 and not is_loopback(where[0]):
        return where[0]
    # The user said `localhost`, or a file: the others must get in.
    reachable = where or reachable_addresses() or [_LOOPBACK]
    needs_ipv6 = any(":" in address for address in where) or all(":" in address for address in reachable)
    return _EVERYWHERE[1] if needs_ipv6 else ""


def _towards_others() -> str:
    """This machine's address for others, as far as it can be told before one came."""
    with contextlib.suppress(OSError):
        return towards(_ANYWHERE, 0)
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
    )


def _not_here(nodes: Nodes, where: Sequence[str]) -> str:
    called = nodes.host if nodes.host in where else f"{nodes.host} ({', '.join(where)})"
    return (
        f"--node-rank 0 is the main node, but {called} of {nodes.setting} is not an address of this machine, which has "
        f"{_own()}; start this node with another --node-rank, or all with this machine's address"
    )


def _own() -> str:
    return ", ".join(reachable_addresses()) or _LOOPBACK
