"""`--init-file`: a shared file in which rank 0, or the main node, publishes its address.

The others poll the file. It may be on NFS, which guarantees only that a file opened after it was closed elsewhere shows
the change. So it is written under another name and renamed, never appended to or locked, and opened for each read. A
reader may find it torn, empty or stale, so an address is used only after its server has replied with the file's nonce.
"""

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep.distributed.network.interfaces import endpoint
from lockstep.errors import ConfigError
from lockstep.system.files import sync_directory

_FORMAT = 1
_BEGINNING = '{"lockstep_init_file": '  # a torn file of ours begins so; a file named by mistake does not
_MAX_BYTES = 1 << 16
_POLL_S = 0.1
_NO_DIRECTORY_S = 20.0  # a new directory may appear late on NFS; later it is a typing mistake
_NOT_THERE = (errno.ENOENT, errno.ESTALE)


@dataclass(frozen=True, slots=True)
class PublishedEndpoint:
    """Where a run's server listens."""

    addresses: tuple[str, ...]
    port: int
    nonce: str
    """Identifies the start that wrote the file; its server replies with it."""
    host: str = ""
    pid: int = 0
    started: float = 0.0
    """Seconds since 1970, by the clock of `host`."""

    def __str__(self) -> str:
        clock = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.started))
        where = " or ".join(endpoint(address, self.port) for address in self.addresses)
        return f"{where} of host {self.host}, started {clock}, process {self.pid}"


def publish(
    path: Path, addresses: Sequence[str], port: int, nonce: str, *, alive: Callable[[PublishedEndpoint], bool]
) -> PublishedEndpoint:
    """Write the address of this run's server, which must be listening already; the file may be missing, empty or stale.

    Raises `ConfigError` if the server that the file names is `alive`.
    """
    published = PublishedEndpoint(tuple(addresses), port, nonce, socket.gethostname(), os.getpid(), time.time())
    keep(path, published, alive=alive)
    keep(path, published, alive=alive)  # of two starts that saw the same stale file, the first to write sees the other
    return published


def keep(path: Path, published: PublishedEndpoint, *, alive: Callable[[PublishedEndpoint], bool]) -> None:
    """Make sure that the file still has `published`; call it while waiting. Raises ConfigError for another live run."""
    current = read(path)
    if current is not None and current.nonce == published.nonce:
        return
    if current is not None and alive(current):
        raise ConfigError(
            f"--init-file {path} belongs to another run, met at {current}; name another file, or end that run first"
        )
    _write(path, published)


def read(path: Path) -> PublishedEndpoint | None:
    """Read the file; None if it does not exist, is empty or torn. Never waits.

    Raises:
        ConfigError: it cannot be read, or was not written by Lockstep.
    """
    try:
        # Listing the directory makes an NFS client look up again a name that was missing before.
        with os.scandir(path.absolute().parent) as names:
            next(names, None)
        with open(path, "rb") as file:
            text = file.read(_MAX_BYTES).decode(errors="replace").strip("\0 \n")
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise ConfigError(f"--init-file {path} cannot be read: {error.strerror}") from None
    if not text:
        return None
    foreign = ConfigError(f"--init-file {path} holds something else; name a file that is empty or does not exist")
    if not text.startswith(_BEGINNING[: len(text)]):
        raise foreign
    try:
        content: dict[str, Any] = json.loads(text)
    except ValueError:  # torn
        return None
    if content.pop("lockstep_init_file") != _FORMAT:
        raise ConfigError(f"--init-file {path} was written by another version of Lockstep; use the same on all nodes")
    try:
        content["addresses"] = tuple(content["addresses"])
        return PublishedEndpoint(**content)
    except (KeyError, TypeError):
        raise foreign from None


def find(
    path: Path,
    deadline: float,
    refused: Collection[str] = (),
    *,
    alive: Callable[[PublishedEndpoint], bool] = lambda _: True,
    waiting: Callable[[str], None] = lambda _: None,
    writer: str = "rank 0",
) -> PublishedEndpoint:
    """Wait for the address of a live server, until `deadline` (`time.monotonic()`); then raise `ConfigError`.

    `refused` are nonces of other runs. While no server is `alive`, the file is polled, and `waiting` is called ten
    times a second with what is awaited; it may raise. `writer` is the process that writes the file, for messages.
    """
    began = time.monotonic()
    while True:
        published = read(path)
        if published is not None and published.nonce not in refused and alive(published):
            return published
        now, folder = time.monotonic(), path.absolute().parent
        if now >= min(deadline, began + _NO_DIRECTORY_S) and not folder.is_dir():
            raise ConfigError(f"--init-file {path}: directory {folder} does not exist on host {socket.gethostname()}")
        awaited = f"{writer} to write {path}"
        if published is not None:
            awaited += f" (it holds the address of a run that is gone or cannot be reached from here: {published})"
        if now >= deadline:
            raise ConfigError(
                f"--init-file {path}: gave up after waiting {now - began:.0f} s for {awaited}; check that {writer} "
                "runs and that the file is on a file system that all nodes share"
            )
        waiting(awaited)
        time.sleep(_POLL_S)


def withdraw(path: Path, nonce: str) -> None:
    """Remove the file if this start wrote it."""
    with contextlib.suppress(OSError, ConfigError):
        current = read(path)
        if current is not None and current.nonce == nonce:
            path.unlink()


def _write(path: Path, published: PublishedEndpoint) -> None:
    temporary = path.with_name(f".{path.name}.{published.nonce}")
    text = json.dumps({"lockstep_init_file": _FORMAT, **asdict(published)}) + "\n"
    try:
        with open(temporary, "x") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.absolute().parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        hint = "; make its directory first" if error.errno == errno.ENOENT else ""
        raise ConfigError(f"--init-file {path} cannot be written: {error.strerror}{hint}") from None
