"""Ranks that found one store make sure that they are one world: the same size, nobody twice, nobody missing.

The verdict is one for all: whoever sees a contradiction writes it down, and every rank raises it.
"""

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from lockstep.errors import ConfigError, PeerError
from lockstep.world import World

_LINGER_S = 3.0  # how long rank 0, whose process holds the store, stays for others to read a refusal
_OK = "ok"


class Store(Protocol):
    """What is needed of a store that ranks share."""

    def set(self, key: str, value: str, /) -> None: ...  # noqa: D102  # torch's own words
    def get(self, key: str, /) -> bytes: ...  # noqa: D102
    def check(self, keys: list[str], /) -> bool: ...  # noqa: D102
    def add(self, key: str, value: int, /) -> int: ...  # noqa: D102
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...  # noqa: D102


class CompleteError(Exception):
    """The ranks that meet at this store were complete before this one came: they are of an earlier start."""


def check_membership(
    store: Store,
    world: World,
    until: float,
    timeout_s: float,
    *,
    meanwhile: Callable[[], None] = lambda: None,
    holds: bool = False,
) -> None:
    """Wait until all ranks of a world are at `store`, and no other; *collective*.

    Args:
        store: fresh for each meeting.
        world: who is to come.
        until: `time.monotonic()` at which to give up.
        timeout_s: what the user calls that bound; for messages.
        holds: whether the store ends with this process.
        meanwhile: called while waiting; a `ConfigError` that it raises ends the waiting of all ranks.

    Raises:
        ConfigError: two ranks contradict each other; raised on all of them.
        PeerError: not all came in time, or rank 0 has ended.
        CompleteError: the store is of ranks that met before.
    """
    try:
        if store.check(["verdict"]) and store.get("verdict") == _OK.encode():
            raise CompleteError
        _enter(store, world)
        _wait(store, world, until, timeout_s, meanwhile)
        verdict = store.get("verdict").decode()
        if verdict != _OK:
            _end(store, world, json.loads(verdict), holds)
    except RuntimeError as error:
        if isinstance(error, PeerError):
            raise
        raise PeerError(
            f"rank {world.rank} could not meet all {world.size} ranks: rank 0 has ended ({str(error).splitlines()[0]})",
            0,
        ) from error


def ranges(ranks: Iterable[int]) -> str:
    """`ranks 2-3, 7`, `rank 4`."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][-1] == rank - 1:
            parts[-1] = [parts[-1][0], rank]
        else:
            parts.append([rank])
    text = ", ".join("-".join(map(str, part)) for part in parts)
    return f"rank{'' if text.isdigit() else 's'} {text}"


def _enter(store: Store, world: World) -> None:
    """Take this rank's place; a contradiction is written down for all."""
    me: dict[str, Any] = {"rank": world.rank, "size": world.size, "host": socket.gethostname(), "pid": os.getpid()}
    me["one_host"] = world.local_size == world.size
    store.add("entered", 1)
    mine = json.dumps({**me, "nonce": secrets.token_hex(8)})  # two containers may share host name and process number
    first = json.loads(store.compare_set("first", "", mine))
    there = json.loads(store.compare_set(f"rank/{world.rank}", "", mine))
    error = ""
    if first["size"] != world.size:
        error = (
            f"ranks disagree on their number: {_who(me)} was told WORLD_SIZE={world.size}, {_who(first)} "
            f"WORLD_SIZE={first['size']}; start all with the same number of nodes and of ranks per node"
        )
    elif first["one_host"] and me["one_host"] and first["host"] != me["host"]:
        error = (
            f"{_who(me)} and {_who(first)} were not told that they are on several hosts; set LOCAL_RANK and "
            "LOCAL_WORLD_SIZE (which rank of its host each is, and of how many)"
        )
    elif there != json.loads(mine):
        error = (
            f"rank {world.rank} came twice, from {_place(there)} and from {_place(me)}; "
            "give every node its own --node-rank, every process its own RANK"
        )
    elif store.add("count", 1) == world.size:
        store.compare_set("verdict", "", _OK)
    if error and _refuse(store, error) == _OK.encode():  # they became complete without this one
        raise CompleteError


def _wait(store: Store, world: World, until: float, timeout_s: float, meanwhile: Callable[[], None]) -> None:
    pause = 0.001
    while not store.check(["verdict"]):
        try:
            meanwhile()
        except ConfigError as error:
            _refuse(store, str(error))
        if time.monotonic() > until:
            missing = [rank for rank in range(world.size) if not store.check([f"rank/{rank}"])]
            did = f"{ranges(missing)} did not come within startup_timeout_s={timeout_s:g}"
            _refuse(store, f"could not meet all {world.size} ranks: {did}; see what became of them", code=1)
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)  # soon for the few that start together, seldom for many


def _end(store: Store, world: World, verdict: dict[str, Any], holds: bool) -> None:
    """Raise what all ranks raise; whoever holds the store, once the others have read it."""
    store.add("read", 1)
    stay = time.monotonic() + _LINGER_S
    while holds and time.monotonic() < stay and store.add("read", 0) < store.add("entered", 0):
        time.sleep(0.02)
    if verdict["code"] == ConfigError.exit_code:
        raise ConfigError(verdict["error"])
    raise PeerError(f"rank {world.rank} {verdict['error']}")


def _refuse(store: Store, error: str, code: int = ConfigError.exit_code) -> bytes:
    """What all ranks are told: this, unless something was written before."""
    return store.compare_set("verdict", "", json.dumps({"error": error, "code": code}))


def _who(card: dict[str, Any]) -> str:
    return f"rank {card['rank']} on host {card['host']}"


def _place(card: dict[str, Any]) -> str:
    return f"process {card['pid']} on host {card['host']}"
