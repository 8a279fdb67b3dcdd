"""A shared file that says where a run is met: `--init-file`.

Whoever hosts the meeting writes its addresses there and the others poll. The file may lie on NFS: it is written beside
and renamed, never appended to or locked, and a reader opens it anew each time, because a file system of that kind shows
changes at the latest to those who open it after they were closed. What a reader finds may be torn, empty or of a run
that is long gone, so no place is believed before somebody there has answered with its nonce.
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

_FORMAT = 1
_BEGINNING = '{"lockstep_init_file": '  # tells a torn file of ours from somebody's file that was named by mistake
_MAX_BYTES = 1 << 16
_POLL_S = 0.1
_NO_DIRECTORY_S = 20.0  # a directory just made elsewhere may show late on NFS; one mistyped never does
_NOT_THERE = (errno.ENOENT, errno.ESTALE)


@dataclass(frozen=True, slots=True)
class PublishedEndpoint:
    """Where a run is met."""

    addresses: tuple[str, ...]
    port: int
    nonce: str
    """Names the start that wrote it: the server there answers with it."""
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
    """Write where this run is met; whatever listens there must be listening already.

    Args:
        path: the file; an empty one, one of a run that is gone, and none are all fine.
        addresses: numeric ones, at which others reach this machine.
        port: the port there.
        nonce: names this start.
        alive: whether the run of a place answers there. If that of the file does, it is a `ConfigError`.
    """
    place = PublishedEndpoint(tuple(addresses), port, nonce, socket.gethostname(), os.getpid(), time.time())
    keep(path, place, alive=alive)
    keep(path, place, alive=alive)  # two starts that saw the same stale file: the one that wrote first sees the other
    return place


def keep(path: Path, place: PublishedEndpoint, *, alive: Callable[[PublishedEndpoint], bool]) -> None:
    """Make sure that the file tells `place`; another run that lives there is a `ConfigError`. Call it while waiting."""
    found = read(path)
    if found is not None and found.nonce == place.nonce:
        return
    if found is not None and alive(found):
        raise ConfigError(
            f"--init-file {path} belongs to another run, met at {found}; name another file, or end that run first"
        )
    _write(path, place)


def read(path: Path) -> PublishedEndpoint | None:
    """What the file says now; None where it does not exist, is empty or is not whole. Never waits.

    Raises:
        ConfigError: it cannot be read, or is not a file of ours.
    """
    try:
        # Listing the directory makes an NFS client ask the server again for a name that was not there before.
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
    """Wait for a place at which a run is met.

    Args:
        path: the file.
        deadline: `time.monotonic()` at which to give up with a `ConfigError`.
        refused: nonces of places that are known to be another run's.
        alive: whether the run of a place answers there; one that does not is looked at again.
        waiting: called ten times a second with what is waited for; may raise.
        writer: who writes the file; for messages.
    """
    began, place = time.monotonic(), None
    while True:
        place = read(path)
        if place is not None and place.nonce not in refused and alive(place):
            return place
        now, folder = time.monotonic(), path.absolute().parent
        if now >= min(deadline, began + _NO_DIRECTORY_S) and not folder.is_dir():
            raise ConfigError(f"--init-file {path}: directory {folder} does not exist on host {socket.gethostname()}")
        awaited = f"{writer} to write {path}" + _why_not(place)
        if now >= deadline:
            raise ConfigError(
                f"--init-file {path}: gave up after waiting {now - began:.0f} s for {awaited}; check that {writer} "
                "runs and that the file is on a file system that all nodes share"
            )
        waiting(awaited)
        time.sleep(_POLL_S)


def withdraw(path: Path, nonce: str) -> None:
    """Remove the file if it still is of this start."""
    with contextlib.suppress(OSError, ConfigError):
        found = read(path)
        if found is not None and found.nonce == nonce:
            path.unlink()


def _why_not(place: PublishedEndpoint | None) -> str:
    if place is None:
        return ""
    return f" (it holds the address of a run that is gone or cannot be reached from here: {place})"


def _write(path: Path, place: PublishedEndpoint) -> None:
    beside = path.with_name(f".{path.name}.{place.nonce}")
    text = json.dumps({"lockstep_init_file": _FORMAT, **asdict(place)}) + "\n"
    try:
        with open(beside, "x") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        folder = os.open(path.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        hint = "; make its directory first" if error.errno == errno.ENOENT else ""
        raise ConfigError(f"--init-file {path} cannot be written: {error.strerror}{hint}") from None
