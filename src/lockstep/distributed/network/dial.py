"""Opens the connections between hosts: each side shows a key that only ranks of this run were told."""

import contextlib
import hmac
import socket
import struct
import time
from collections.abc import Sequence

from lockstep.distributed.network.interfaces import family_of
from lockstep.distributed.network.links import Endpoint, Link, Links
from lockstep.errors import PeerError

KEY_SIZE = 64
"""Bytes of the secret that a connection is proven by: one half for each side to show."""

_HALF = KEY_SIZE // 2
_GREETING = struct.Struct(f"<{_HALF}sq")
_STRANGER_S = 2.0  # who says nothing for so long is none of us


def unpaced(made: socket.socket) -> socket.socket:
    """The same socket, which sends at once what it is given; to be asked before it connects or is connected to.

    BBR, the default of some machines, spreads every burst over a fifth of a round trip: a message of 37 kB took 0.68
    round trips instead of 0.52. Reno needs no rights.
    """
    with contextlib.suppress(OSError):
        if made.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"bbr":
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    return made


def connected(
    listener: socket.socket, places: Sequence[Endpoint], mine: int, deadline: float, timeout_s: float, patience_s: float
) -> Links:
    """Connections to all other places; raises `PeerError` naming the one that cannot be reached.

    Args:
        listener: listens at the place `mine`.
        places: of all hosts, equal everywhere.
        mine: which of them is ours.
        deadline: of `time.monotonic()`.
        timeout_s: bound on a message; named in messages.
        patience_s: how much later a message is given up.
    """
    links: dict[int, Link] = {}
    me, other = places[mine], places[0]
    try:
        for host in range(mine):  # each accepts once it has itself reached those before it
            other = places[host]
            links[host] = Link(other, _connect(me, other, mine, deadline))
        while len(links) < len(places) - 1:
            other = next(place for host, place in enumerate(places) if host > mine and host not in links)
            listener.settimeout(max(0.01, deadline - time.monotonic()))
            accepted = _accept(listener.accept()[0], me, places, deadline)
            if accepted is not None and accepted[0] > mine and accepted[0] not in links:
                links[accepted[0]] = Link(places[accepted[0]], accepted[1])
    except OSError as error:
        for link in links.values():
            link.socket.close()
        raise PeerError(
            f"{me.name} and {other.name} did not connect ({error}); {me.name} is at {me.address}:{me.port}, "
            f"{other.name} at {other.address}:{other.port}: if these are wrong, set GLOO_SOCKET_IFNAME on each host to "
            "the interface that reaches the others"
        ) from error
    for link in links.values():
        link.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.socket.setblocking(False)
    return Links(me.rank, links, timeout_s, patience_s)


def _connect(me: Endpoint, other: Endpoint, mine: int, deadline: float) -> socket.socket:
    made = unpaced(socket.socket(family_of(other.address), socket.SOCK_STREAM))
    try:
        made.settimeout(max(0.01, deadline - time.monotonic()))
        made.connect((other.address, other.port))
        made.sendall(_GREETING.pack(other.key[:_HALF], mine))
        if not hmac.compare_digest(_exactly(made, _HALF), other.key[_HALF:]):
            raise ConnectionRefusedError("something else listens there")
    except OSError:
        made.close()
        raise
    return made


def _accept(
    made: socket.socket, me: Endpoint, places: Sequence[Endpoint], deadline: float
) -> tuple[int, socket.socket] | None:
    """The host that connected, if it belongs to this run; a stranger is hung up on."""
    try:
        made.settimeout(min(_STRANGER_S, max(0.01, deadline - time.monotonic())))
        key, host = _GREETING.unpack(_exactly(made, _GREETING.size))
        if hmac.compare_digest(key, me.key[:_HALF]) and 0 <= host < len(places):
            made.sendall(me.key[_HALF:])
            return host, made
    except OSError:
        pass
    made.close()
    return None


def _exactly(made: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = made.recv(size - len(found))
        if not part:
            raise ConnectionResetError("closed")
        found += part
    return found
