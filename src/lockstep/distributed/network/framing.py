"""Messages between processes: one JSON object per line over TCP. Reading a message never runs code from it."""

import json
import socket
import time
from collections.abc import Callable
from typing import Any, cast

MAX_LINE = 1 << 20
"""Bytes of the longest message that is accepted."""
RECEIVE_SIZE = 1 << 16
_TICK_S = 0.1
_SEND_S = 10.0
_UNANSWERED_S = 15  # then the kernel gives a connection up; a link that is cut for 5 s survives


class DisconnectedError(Exception):
    """The other side closed the connection, or its host no longer answers."""


class NotLockstepError(Exception):
    """The other side sends nothing, or something else than messages of Lockstep."""


class LineBuffer:
    """Splits the bytes that arrive on one connection into messages."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Add bytes; returns the messages that are complete. Raises ValueError for anything but JSON objects."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        if len(self._pending) > MAX_LINE:
            raise ValueError(f"a message is longer than {MAX_LINE} bytes")
        try:
            messages: list[Any] = [json.loads(line) for line in lines]
        except RecursionError:
            raise ValueError("a message is nested too deeply") from None
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError("a message is not a JSON object")
        return cast("list[dict[str, Any]]", messages)


class MessageConnection:
    """The client's side of a connection that carries messages; `poll` is called ten times a second while waiting."""

    def __init__(self, connection: socket.socket, poll: Callable[[], None] = lambda: None) -> None:
        self.socket = connection
        self.poll = poll
        self._lines = LineBuffer()
        self._messages: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        """Send one message. Raises `DisconnectedError`."""
        try:
            self.socket.settimeout(_SEND_S)
            self.socket.sendall(encode(message))
        except OSError as error:
            raise DisconnectedError(error.strerror or str(error)) from error

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the next message.

        Raises:
            DisconnectedError: the connection has ended.
            NotLockstepError: nothing came within `timeout_s`, or no message.
        """
        deadline = time.monotonic() + timeout_s
        while not self._messages:
            if time.monotonic() > deadline:
                raise NotLockstepError(f"it said nothing for {timeout_s:g} s")
            self.poll()
            try:
                self.socket.settimeout(_TICK_S)
                data = self.socket.recv(RECEIVE_SIZE)
                self._messages = self._lines.feed(data)
            except TimeoutError:
                continue
            except OSError as error:
                raise DisconnectedError(error.strerror or str(error)) from error
            except ValueError:
                raise NotLockstepError("it does not speak Lockstep's protocol") from None
            if not data:
                raise DisconnectedError("the connection is closed")
        return self._messages.pop(0)

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


def encode(message: dict[str, Any]) -> bytes:
    """A message as it is sent."""
    return json.dumps(message).encode() + b"\n"


def enable_keepalive(connection: socket.socket) -> None:
    """Have the kernel close the connection within 15 s once the other host has vanished, and send without delay."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _UNANSWERED_S // 3),
        (socket.TCP_KEEPINTVL, _UNANSWERED_S // 3),
        (socket.TCP_KEEPCNT, 2),
        (socket.TCP_USER_TIMEOUT, 1000 * _UNANSWERED_S),
        (socket.TCP_NODELAY, 1),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
