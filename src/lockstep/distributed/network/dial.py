"""Open the connections between hosts: each side proves a key that only ranks of this run have."""

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
"""Bytes of a connection's key: each side sends one half as its proof."""

_HALF = KEY_SIZE // 2
_HELLO = struct.Struct(f"<{_HALF}sq")
_HELLO_S = 2.0  # a client that sends nothing for so long is not of this run


def without_pacing(opened: socket.socket) -> socket.socket:
    """The same socket, which no longer spreads what it sends over time; call it before it connects or listens.

    BBR, the default of some machines, spreads every burst over a fifth of a round trip: a message of 37 kB took 0.68
    round trips instead of 0.52. Reno needs no privileges.
    """
    with contextlib.suppress(OSError):
        if opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"bbr":
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    return opened


def connect_hosts(
    listener: socket.socket,
    endpoints: Sequence[Endpoint],
    mine: int,
    deadline: float,
    timeout_s: float,
    margin_s: float,
) -> Links:
    """Connect this host, number `mine`, to all others before `deadline` (`time.monotonic()`).

    A message is given up `margin_s` after `timeout_s`. Raises `PeerError`, naming the host that cannot be reached.
    """
    links: dict[int, Link] = {}
    me, other = endpoints[mine], endpoints[0]
    try:
        for host in range(mine):  # a host accepts once it has connected to those before it
            other = endpoints[host]
            links[host] = Link(other, _connect(other, mine, deadline))
        while len(links) < len(endpoints) - 1:
            other = next(endpoint for host, endpoint in enumerate(endpoints) if host > mine and host not in links)
            listener.settimeout(max(0.01, deadline - time.monotonic()))
            accepted = _accept(listener.accept()[0], me, endpoints, deadline)
            if accepted is not None and accepted[0] > mine and accepted[0] not in links:
                links[accepted[0]] = Link(endpoints[accepted[0]], accepted[1])
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
    return Links(me.rank, links, timeout_s, margin_s)


def _connect(other: Endpoint, mine: int, deadline: float) -> socket.socket:
    opened = without_pacing(socket.socket(family_of(other.address), socket.SOCK_STREAM))
    try:
        opened.settimeout(max(0.01, deadline - time.monotonic()))
        opened.connect((other.address, other.port))
        opened.sendall(_HELLO.pack(other.key[:_HALF], mine))
        if not hmac.compare_digest(_exactly(opened, _HALF), other.key[_HALF:]):
            raise ConnectionRefusedError("something else listens there")
    except OSError:
        opened.close()
        raise
    return opened


def _accept(
    opened: socket.socket, me: Endpoint, endpoints: Sequence[Endpoint], deadline: float
) -> tuple[int, socket.socket] | None:
    """The index of the host that connected, and its socket; None, and the socket closed, if it has no key."""
    try:
        opened.settimeout(min(_HELLO_S, max(0.01, deadline - time.monotonic())))
        key, host = _HELLO.unpack(_exactly(opened, _HELLO.size))
        if hmac.compare_digest(key, me.key[:_HALF]) and 0 <= host < len(endpoints):
            opened.sendall(me.key[_HALF:])
            return host, opened
    except OSError:
        pass
    opened.close()
    return None


def _exactly(opened: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = opened.recv(size - len(received))
        if not part:
            raise ConnectionResetError("closed")
        received += part
    return received
