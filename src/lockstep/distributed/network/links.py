"""Messages between hosts: a TCP connection from each host's first rank to each other's.

All send at once, then all receive: one message costs one way through the network, half a round trip. (gloo's
point-to-point messages need a whole one, since they are sent only when the receiver has said that it waits, and a size
that differs aborts the process there.) Each message begins with what its sender is doing, so that hosts in different
collectives, and the reason why a host leaves, are told at once. Nothing is unpickled: a message is a header and bytes.
"""

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lockstep.distributed.peers import different_collectives
from lockstep.errors import PeerError, RunError

_HEADER = struct.Struct("<qq")
_HEADER_SIZE = 512
_SUM, _LAST_WORDS = 1, 2
_LOOK_S = 0.1
_LONGEST_LOOK_S = 2.0  # time in which this process itself was stopped (a suspended job) says nothing about others


def in_slices(num_hosts: int, num_bytes: int) -> bool:
    """Whether a buffer of so many bytes is summed in slices among so many hosts: less to send, one way more.

    Worth it from 256 KB saved on: 0.2 ms at 10 Gb/s and 2 ms at 1 Gb/s, about what a way takes in such networks.
    """
    return (num_hosts - 1) * num_bytes * (num_hosts - 2) // num_hosts > 1 << 18


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the first rank of a host can be reached, and by whom."""

    name: str
    """Of the host with its ranks, for messages."""
    rank: int
    address: str
    port: int
    key: bytes
    """What whoever connects has to know."""


@dataclass(slots=True)
class Link:
    """The connection to one other host, and what is on its way."""

    place: Endpoint
    socket: socket.socket
    header: bytearray = field(default_factory=lambda: bytearray(_HEADER_SIZE))
    out: list[memoryview] = field(default_factory=list[memoryview])
    into: list[memoryview] = field(default_factory=list[memoryview])
    checked: bool = False

    def start(self, header: bytes, body: memoryview, into: memoryview) -> None:
        """Begin to send a message and to expect one."""
        self.out = [part for part in (memoryview(header), body) if len(part)]
        self.into = [part for part in (memoryview(self.header), into) if len(part)]
        self.checked = False

    def send(self) -> None:
        """As much as goes without waiting. A connection that broke is seen when receiving: there may be last words."""
        try:
            while self.out:
                _advance(self.out, self.socket.sendmsg(self.out))
        except BlockingIOError:
            pass
        except OSError:
            self.out.clear()

    def receive(self) -> None:
        """As much as is there; raises OSError when the other side is gone."""
        try:
            while self.into:
                count = self.socket.recvmsg_into(self.into)[0]
                if count == 0:
                    raise ConnectionResetError("closed")
                _advance(self.into, count)
                if not self.checked:
                    return  # the header first
        except BlockingIOError:
            pass

    @property
    def has_header(self) -> bool:
        """Whether what the other side is doing has arrived."""
        return not self.into or self.into[0].obj is not self.header

    @property
    def events(self) -> int:
        """What `select.poll` is to wait for; 0 once all is sent and received."""
        return (select.POLLOUT if self.out else 0) | (select.POLLIN if self.into else 0)


class Links:
    """The connections of one host to all others, opened by `lockstep.distributed.network.dial`.

    Args:
        rank: this host's first rank, which calls.
        links: by host.
        timeout_s: named in messages.
        patience_s: how much later than that a message is given up.
    """

    def __init__(self, rank: int, links: Mapping[int, Link], timeout_s: float, patience_s: float) -> None:
        self._rank, self._links = rank, links
        self._timeout_s, self._patience_s = timeout_s, patience_s

    def swap(
        self,
        outgoing: Mapping[int, memoryview],
        incoming: Mapping[int, memoryview],
        tag: str,
        size: int,
        on_wait: Callable[[], None],
    ) -> None:
        """Send bytes to every other host and receive every other host's, in one go; what is not given is empty.

        Args:
            outgoing: by host.
            incoming: by host; written in place.
            tag: which collective this is; others must be in the same, with the same `size`.
            size: bytes of one row.
            on_wait: asked now and then while waiting; may raise.
        """
        header, nothing = _packed(_SUM, size, tag), memoryview(b"")
        poller = select.poll()
        pending: dict[int, Link] = {}
        for host, link in self._links.items():
            link.start(header, outgoing.get(host, nothing), incoming.get(host, nothing))
            link.send()
            pending[link.socket.fileno()] = link
            poller.register(link.socket, link.events)
        waited_s, looked_at = 0.0, time.monotonic()
        while pending:
            for descriptor, _ in poller.poll(1000 * _LOOK_S):
                link = pending[descriptor]
                link.send()
                self._receive(link, tag, size)
                if link.events:
                    poller.modify(link.socket, link.events)
                else:
                    poller.unregister(link.socket)
                    del pending[descriptor]
            now = time.monotonic()
            if now - looked_at > _LOOK_S:
                waited_s += min(now - looked_at, _LONGEST_LOOK_S)
                looked_at = now
                on_wait()
            if pending and waited_s > self._timeout_s + self._patience_s:
                silent = ", ".join(link.place.name for link in pending.values())
                raise PeerError(f"{silent} did not answer in {tag} within timeout_s={self._timeout_s:g}")

    def fail(self, words: str) -> None:
        """Tell the other hosts why this one leaves, as far as that goes without waiting; from any thread."""
        for link in self._links.values():
            if not link.out:  # not in the midst of a message
                with contextlib.suppress(OSError):
                    link.socket.send(_packed(_LAST_WORDS, 0, words))

    def close(self) -> None:
        """Hang up."""
        for link in self._links.values():
            link.socket.close()

    def _receive(self, link: Link, tag: str, size: int) -> None:
        try:
            link.receive()
            if link.has_header and not link.checked:
                self._check(link, tag, size)
                link.receive()
        except OSError as error:
            raise PeerError(
                f"{link.place.name} left while rank {self._rank} waited in {tag}; its logs say why", link.place.rank
            ) from error

    def _check(self, link: Link, tag: str, size: int) -> None:
        kind, bytes_, text = _unpacked(link.header)
        link.checked = True
        if kind == _LAST_WORDS:
            raise PeerError(text)
        if (kind, bytes_, text) != (_SUM, size, _cut(tag).decode()):
            raise RunError(
                different_collectives(self._rank, _cut(tag).decode(), size, [(link.place.rank, text, bytes_)])
            )


def _cut(text: str) -> bytes:
    return text.encode("ascii", "replace")[: _HEADER_SIZE - _HEADER.size].rstrip()


def _packed(kind: int, size: int, text: str) -> bytes:
    return (_HEADER.pack(kind, size) + _cut(text)).ljust(_HEADER_SIZE)


def _unpacked(header: bytearray) -> tuple[int, int, str]:
    kind, size = _HEADER.unpack_from(header)
    return kind, size, header[_HEADER.size :].decode("ascii", "replace").rstrip()


def _advance(parts: list[memoryview], count: int) -> None:
    """Drop the first `count` bytes."""
    while parts and count >= len(parts[0]):
        count -= len(parts.pop(0))
    if count:
        parts[0] = parts[0][count:]
