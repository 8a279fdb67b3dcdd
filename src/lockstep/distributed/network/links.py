"""Messages between hosts: a TCP connection between the first ranks of every two hosts.

All send at once, then all receive: a message takes half a round trip. (gloo's point-to-point messages take a whole one,
since they are sent only after the receiver has announced that it waits, and a different size aborts the process there.)
Each message begins with a header that names the sender's collective, so that hosts in different collectives, and the
reason why a host exits, are reported at once. Nothing is unpickled: a message is a header and bytes.
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
_DATA, _FAILURE = 1, 2
_POLL_S = 0.1
_MAX_POLL_S = 2.0  # a longer gap means that this process itself was stopped: it does not count as waiting


def in_slices(num_hosts: int, num_bytes: int) -> bool:
    """Whether hosts sum a buffer in slices: each sends fewer bytes, but twice.

    Worth it from 256 KB saved on: 0.2 ms at 10 Gb/s and 2 ms at 1 Gb/s, about the latency of such networks.
    """
    return (num_hosts - 1) * num_bytes * (num_hosts - 2) // num_hosts > 1 << 18


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address and key of the first rank of a host."""

    name: str
    """The host and its ranks, for messages."""
    rank: int
    address: str
    port: int
    key: bytes
    """Proves that both sides of a connection are of this run."""


@dataclass(slots=True)
class Link:
    """The connection to one other host, and the message in progress."""

    endpoint: Endpoint
    socket: socket.socket
    header: bytearray = field(default_factory=lambda: bytearray(_HEADER_SIZE))
    out: list[memoryview] = field(default_factory=list[memoryview])
    into: list[memoryview] = field(default_factory=list[memoryview])
    checked: bool = False

    def start(self, header: bytes, body: memoryview, into: memoryview) -> None:
        """Begin to send a message and to receive one."""
        self.out = [part for part in (memoryview(header), body) if len(part)]
        self.into = [part for part in (memoryview(self.header), into) if len(part)]
        self.checked = False

    def send(self) -> None:
        """Send what goes without waiting. `receive` reports a broken connection, after its last message."""
        try:
            while self.out:
                _advance(self.out, self.socket.sendmsg(self.out))
        except BlockingIOError:
            pass
        except OSError:
            self.out.clear()

    def receive(self) -> None:
        """Receive as much as has arrived. Raises OSError if the other side has closed the connection."""
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
        """Whether the other side's header has arrived."""
        return not self.into or self.into[0].obj is not self.header

    @property
    def events(self) -> int:
        """The events for `select.poll`; 0 once all is sent and received."""
        return (select.POLLOUT if self.out else 0) | (select.POLLIN if self.into else 0)


class Links:
    """The connections of one host to all others, opened by `lockstep.distributed.network.dial`.

    `rank`, this host's first, uses them. A message is given up `margin_s` after `timeout_s`.
    """

    def __init__(self, rank: int, links: Mapping[int, Link], timeout_s: float, margin_s: float) -> None:
        self._rank = rank
        self._links = links
        self._timeout_s = timeout_s
        self._margin_s = margin_s

    def exchange(
        self,
        outgoing: Mapping[int, memoryview],
        incoming: Mapping[int, memoryview],
        tag: str,
        signature: int,
        on_wait: Callable[[], None],
    ) -> None:
        """Send bytes to every other host and receive from each, at the same time; hosts that are left out get none.

        `incoming` is written in place. The other hosts must be in the same collective `tag`, and send rows of the same
        signature. `on_wait` is called ten times a second while waiting, and may raise.
        """
        header, nothing = _packed(_DATA, signature, tag), memoryview(b"")
        poller = select.poll()
        pending: dict[int, Link] = {}
        for host, link in self._links.items():
            link.start(header, outgoing.get(host, nothing), incoming.get(host, nothing))
            link.send()
            pending[link.socket.fileno()] = link
            poller.register(link.socket, link.events)
        waited_s, polled_at = 0.0, time.monotonic()
        while pending:
            for descriptor, _ in poller.poll(1000 * _POLL_S):
                link = pending[descriptor]
                link.send()
                self._receive(link, tag, signature)
                if link.events:
                    poller.modify(link.socket, link.events)
                else:
                    poller.unregister(link.socket)
                    del pending[descriptor]
            now = time.monotonic()
            if now - polled_at > _POLL_S:
                waited_s += min(now - polled_at, _MAX_POLL_S)
                polled_at = now
                on_wait()
            if pending and waited_s > self._timeout_s + self._margin_s:
                silent = sorted((link.endpoint.name for link in pending.values()), key=lambda name: (len(name), name))
                raise PeerError(f"{', '.join(silent)} did not answer in {tag} within timeout_s={self._timeout_s:g}")

    def send_failure(self, reason: str) -> None:
        """Send the other hosts the reason why this one exits, without waiting; from any thread."""
        for link in self._links.values():
            if not link.out:  # not in the middle of a message
                with contextlib.suppress(OSError):
                    link.socket.send(_packed(_FAILURE, 0, reason))

    def close(self) -> None:
        """Close the connections."""
        for link in self._links.values():
            link.socket.close()

    def _receive(self, link: Link, tag: str, signature: int) -> None:
        try:
            link.receive()
            if link.has_header and not link.checked:
                self._check(link, tag, signature)
                link.receive()
        except OSError as error:
            raise PeerError(
                f"{link.endpoint.name} closed its connection while rank {self._rank} waited in {tag}; its logs say why",
                link.endpoint.rank,
            ) from error

    def _check(self, link: Link, tag: str, signature: int) -> None:
        kind, theirs, text = _unpacked(link.header)
        link.checked = True
        if kind == _FAILURE:
            raise PeerError(text)
        if (kind, theirs, text) != (_DATA, signature, _truncated(tag).decode()):
            raise RunError(
                different_collectives(
                    self._rank, _truncated(tag).decode(), signature, [(link.endpoint.rank, text, theirs)]
                )
            )


def _truncated(text: str) -> bytes:
    return text.encode("ascii", "replace")[: _HEADER_SIZE - _HEADER.size].rstrip()


def _packed(kind: int, signature: int, text: str) -> bytes:
    return (_HEADER.pack(kind, signature) + _truncated(text)).ljust(_HEADER_SIZE)


def _unpacked(header: bytearray) -> tuple[int, int, str]:
    kind, signature = _HEADER.unpack_from(header)
    return kind, signature, header[_HEADER.size :].decode("ascii", "replace").rstrip()


def _advance(parts: list[memoryview], count: int) -> None:
    """Drop the first `count` bytes."""
    while parts and count >= len(parts[0]):
        count -= len(parts.pop(0))
    if count:
        parts[0] = parts[0][count:]
