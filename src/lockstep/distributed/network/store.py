"""The key-value store through which ranks and nodes find each other: its protocol, and one in this process's memory.

`store_server.py` serves a store to other processes. torch's `TCPStore` follows the same protocol. PMI-1 does not: it
offers no check, add or compare-and-set, so `pmi.py` only broadcasts one value through it. JAX's coordination service is
no store here either: `jax.distributed` opens it for itself, after the rendezvous.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol

ANSWER_S = 10.0
"""Bound on one request to a store, and on waiting for a key."""
_POLL_S = 0.005


class StoreGoneError(RuntimeError):
    """The process that serves a store has ended, or cannot be reached any more."""


class Store(Protocol):
    """Strings by key, shared by processes: a subset of `torch.distributed.Store`. RuntimeError: it is gone."""

    def set(self, key: str, value: str, /) -> None:
        """Set a value."""
        ...

    def get(self, key: str, /) -> bytes:
        """Wait for a key and return its value. Raises RuntimeError after a bounded time."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys exist."""
        ...

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter that starts at 0; returns its new value."""
        ...

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set `desired` if the value is `expected` ("": the key does not exist); returns the value it has then."""
        ...


class MemoryStore:
    """A store in the memory of this process."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: str, /) -> None:
        """Set a value."""
        with self._lock:
            self._values[key] = value

    def get(self, key: str, /) -> bytes:
        """Wait for a key and return its value."""
        return wait_for_value(self.get_nowait, key).encode()

    def get_nowait(self, key: str) -> str | None:
        """The value; None if the key does not exist."""
        with self._lock:
            return self._values.get(key)

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys exist."""
        with self._lock:
            return all(key in self._values for key in keys)

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter that starts at 0; returns its new value."""
        with self._lock:
            count = int(self._values.get(key, "0")) + amount
            self._values[key] = str(count)
            return count

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set `desired` if the value is `expected` ("": the key does not exist); returns the value it has then."""
        with self._lock:
            if self._values.get(key, "") == expected:
                self._values[key] = desired
            return self._values.get(key, expected).encode()


class PrefixStore:
    """The keys of a store that begin with `prefix`, named without it."""

    def __init__(self, prefix: str, store: Store) -> None:
        self._prefix = prefix
        self._store = store

    def set(self, key: str, value: str, /) -> None:
        """Set a value."""
        self._store.set(f"{self._prefix}/{key}", value)

    def get(self, key: str, /) -> bytes:
        """Wait for a key and return its value."""
        return self._store.get(f"{self._prefix}/{key}")

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys exist."""
        return self._store.check([f"{self._prefix}/{key}" for key in keys])

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter that starts at 0; returns its new value."""
        return self._store.add(f"{self._prefix}/{key}", amount)

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set `desired` if the value is `expected` ("": the key does not exist); returns the value it has then."""
        return self._store.compare_set(f"{self._prefix}/{key}", expected, desired)


def wait_for_value(get_nowait: Callable[[str], str | None], key: str) -> str:
    """Poll for a key until it has a value. Raises RuntimeError after `ANSWER_S`."""
    deadline = time.monotonic() + ANSWER_S
    while (value := get_nowait(key)) is None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"nobody has set {key.rpartition('/')[2]} within {ANSWER_S:g} s")
        time.sleep(_POLL_S)
    return value
