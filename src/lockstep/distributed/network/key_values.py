"""A small store of texts by key, held by one process for others: where ranks meet without a framework's own store.

Requests and answers are lines of JSON. Whoever connects may read and write; what must not be found by strangers lies
under keys that they cannot guess (`lockstep.distributed.network.stores`).
"""

import contextlib
import json
import socket
import threading
import time
import weakref
from collections.abc import Callable
from io import BufferedRWPair
from typing import Any

_LONGEST = 1 << 24  # bytes of a line
_POLL_S = 0.005
ANSWER_S = 10.0
"""Bound on what a server that was reached may take to answer, and on waiting for a key."""


class StoreGoneError(RuntimeError):
    """The process that holds a store has ended, or is not reached any more."""


class KeyValues:
    """Texts by key, in this process."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: str, /) -> None:
        """Put a value."""
        with self._lock:
            self._values[key] = value

    def get(self, key: str, /) -> bytes:
        """The value, once it is there; RuntimeError if it does not come."""
        until = time.monotonic() + ANSWER_S
        while not self.check([key]):
            if time.monotonic() > until:
                raise RuntimeError(f"nobody has set {key.rpartition('/')[2]} within {ANSWER_S:g} s")
            time.sleep(_POLL_S)
        return self._values[key].encode()

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys are there."""
        with self._lock:
            return all(key in self._values for key in keys)

    def add(self, key: str, value: int, /) -> int:
        """Count up; returns the new count."""
        with self._lock:
            count = int(self._values.get(key, "0")) + value
            self._values[key] = str(count)
            return count

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Put `desired` if the value is `expected`, "" being none; returns what is there now."""
        with self._lock:
            if self._values.get(key, "") == expected:
                self._values[key] = desired
            return self._values.get(key, expected).encode()


class Server:
    """Serves a store behind a listening socket, from threads of this process, until the process ends."""

    def __init__(self, listener: socket.socket) -> None:
        self.store = KeyValues()
        self._listener = listener
        threading.Thread(target=self._accept, name="lockstep-store", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), name="lockstep-store", daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        """Answer one client until it hangs up; one that speaks another language is hung up on."""
        operations: dict[str, Callable[..., Any]] = {
            "set": self.store.set,
            "check": self.store.check,
            "add": self.store.add,
            "compare_set": self.store.compare_set,
            "get": self._get,
        }
        try:
            with connection, connection.makefile("rwb") as stream:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while line := stream.readline(_LONGEST):
                    name, *arguments = json.loads(line)
                    answer = operations[name](*arguments)
                    text = answer.decode() if isinstance(answer, bytes) else answer
                    stream.write(json.dumps(text).encode() + b"\n")
                    stream.flush()
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return

    def _get(self, key: str) -> bytes | None:
        """The value if it is there; the client asks again."""
        return self.store.get(key) if self.store.check([key]) else None


class Client:
    """A store that another process holds.

    Raises:
        OSError: nobody listens there, or there is no way to it.
    """

    def __init__(self, address: str, port: int, connect_s: float) -> None:
        self._connection = socket.create_connection((address, port), connect_s)
        self._connection.settimeout(ANSWER_S)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._connection.makefile("rwb")
        weakref.finalize(self, _hang_up, self._stream, self._connection)
        self._lock = threading.Lock()

    def set(self, key: str, value: str, /) -> None:
        """Put a value."""
        self._ask("set", key, value)

    def get(self, key: str, /) -> bytes:
        """The value, once it is there; RuntimeError if it does not come."""
        until = time.monotonic() + ANSWER_S
        while (value := self._ask("get", key)) is None:
            if time.monotonic() > until:
                raise RuntimeError(f"nobody has set {key.rpartition('/')[2]} within {ANSWER_S:g} s")
            time.sleep(_POLL_S)
        return str(value).encode()

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys are there."""
        return bool(self._ask("check", keys))

    def add(self, key: str, value: int, /) -> int:
        """Count up; returns the new count."""
        return int(self._ask("add", key, value))

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Put `desired` if the value is `expected`, "" being none; returns what is there now."""
        return str(self._ask("compare_set", key, expected, desired)).encode()

    def _ask(self, *request: Any) -> Any:
        with self._lock:
            try:
                self._stream.write(json.dumps(request).encode() + b"\n")
                self._stream.flush()
                line = self._stream.readline(_LONGEST)
                if not line:
                    raise StoreGoneError("its store has hung up")
                return json.loads(line)
            except TimeoutError as error:
                raise StoreGoneError(f"its store did not answer within {ANSWER_S:g} s") from error
            except (OSError, ValueError) as error:
                raise StoreGoneError(f"its store is gone ({error})") from error


def _hang_up(stream: BufferedRWPair, connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # something was not sent, and nobody is there to read it
        stream.close()
    connection.close()


class Part:
    """The keys of a store that begin with `prefix`, without it."""

    def __init__(self, prefix: str, store: "KeyValues | Client | Part") -> None:
        self._prefix, self._store = prefix, store

    def set(self, key: str, value: str, /) -> None:
        """Put a value."""
        self._store.set(f"{self._prefix}/{key}", value)

    def get(self, key: str, /) -> bytes:
        """The value, once it is there; RuntimeError if it does not come."""
        return self._store.get(f"{self._prefix}/{key}")

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys are there."""
        return self._store.check([f"{self._prefix}/{key}" for key in keys])

    def add(self, key: str, value: int, /) -> int:
        """Count up; returns the new count."""
        return self._store.add(f"{self._prefix}/{key}", value)

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Put `desired` if the value is `expected`, "" being none; returns what is there now."""
        return self._store.compare_set(f"{self._prefix}/{key}", expected, desired)
