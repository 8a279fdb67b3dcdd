"""The membership check: ranks at one store are of one world, of the same size, none twice and none missing.

All ranks come to the same verdict: the first one that finds a contradiction writes it to the store, and each raises it.
"""

import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from typing import Any

from lockstep.distributed.network.store import Store
from lockstep.distributed.ranges import named_ranges
from lockstep.errors import ConfigError, PeerError
from lockstep.world import World

_LINGER_S = 3.0  # how long rank 0, whose process serves the store, waits for the others to read a refusal
_OK = "ok"


class CompleteError(Exception):
    """The ranks at this store were complete before this one came: they are of an earlier start."""


def check_membership(
    store: Store,
    world: World,
    deadline: float,
    timeout_s: float,
    *,
    meanwhile: Callable[[], None] = lambda: None,
    serves_store: bool = False,
) -> None:
    """Wait until all ranks of a world are at `store`, and no others; *collective*.

    Args:
        store: without keys of an earlier rendezvous.
        world: the expected ranks.
        deadline: `time.monotonic()` at which to give up.
        timeout_s: the user's setting of the same bound, for messages.
        meanwhile: called while waiting; a `ConfigError` that it raises ends the waiting of all ranks.
        serves_store: whether the store ends with this process.

    Raises:
        ConfigError: two ranks contradict each other; raised on all of them.
        PeerError: some rank is late, or rank 0 has ended.
        CompleteError: the store is that of an earlier start.
    """
    try:
        if store.check(["verdict"]) and store.get("verdict") == _OK.encode():
            raise CompleteError
        _enter(store, world)
        _wait(store, world, deadline, timeout_s, meanwhile)
        verdict = store.get("verdict").decode()
        if verdict != _OK:
            _raise(store, world, json.loads(verdict), serves_store)
    except RuntimeError as error:
        if isinstance(error, PeerError):
            raise
        raise PeerError(
            f"rank {world.rank} could not meet all {world.size} ranks: rank 0 has ended ({str(error).splitlines()[0]})",
            0,
        ) from error


def _enter(store: Store, world: World) -> None:
    """Register this rank; write a contradiction to the store."""
    me: dict[str, Any] = {
        "rank": world.rank,
        "size": world.size,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "one_host": world.local_size == world.size,
    }
    store.add("entered", 1)
    mine = json.dumps({**me, "nonce": secrets.token_hex(8)})  # two containers may share host name and process id
    first = json.loads(store.compare_set("first", "", mine))
    registered = json.loads(store.compare_set(f"rank/{world.rank}", "", mine))
    error = ""
    if first["size"] != world.size:
        error = (
            f"ranks disagree on their number: {_rank(me)} was told WORLD_SIZE={world.size}, {_rank(first)} "
            f"WORLD_SIZE={first['size']}; start all with the same number of nodes and of ranks per node"
        )
    elif first["one_host"] and me["one_host"] and first["host"] != me["host"]:
        error = (
            f"{_rank(me)} and {_rank(first)} were not told that they are on several hosts; set LOCAL_RANK and "
            "LOCAL_WORLD_SIZE (which rank of its host each is, and of how many)"
        )
    elif registered != json.loads(mine):
        error = (
            f"rank {world.rank} came twice, from {_process(registered)} and from {_process(me)}; "
            "give every node its own --node-rank, every process its own RANK"
        )
    elif store.add("count", 1) == world.size:
        store.compare_set("verdict", "", _OK)
    if error and _refuse(store, error) == _OK.encode():  # the others became complete before
        raise CompleteError


def _wait(store: Store, world: World, deadline: float, timeout_s: float, meanwhile: Callable[[], None]) -> None:
    pause = 0.001
    while not store.check(["verdict"]):
        try:
            meanwhile()
        except ConfigError as error:
            _refuse(store, str(error))
        if time.monotonic() > deadline:
            missing = [rank for rank in range(world.size) if not store.check([f"rank/{rank}"])]
            late = f"{named_ranges(missing)} did not come within startup_timeout_s={timeout_s:g}"
            _refuse(store, f"could not meet all {world.size} ranks: {late}; see what became of them", code=1)
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)  # a few ranks are complete at once; many must not flood the store


def _raise(store: Store, world: World, verdict: dict[str, Any], serves_store: bool) -> None:
    """Raise the verdict; the rank that serves the store does so after the others have read it."""
    store.add("read", 1)
    until = time.monotonic() + _LINGER_S
    while serves_store and time.monotonic() < until and store.add("read", 0) < store.add("entered", 0):
        time.sleep(0.02)
    if verdict["code"] == ConfigError.exit_code:
        raise ConfigError(verdict["error"])
    raise PeerError(f"rank {world.rank} {verdict['error']}")


def _refuse(store: Store, error: str, code: int = ConfigError.exit_code) -> bytes:
    """Write the verdict of all ranks, unless there is one; returns the verdict there is."""
    return store.compare_set("verdict", "", json.dumps({"error": error, "code": code}))


def _rank(identity: dict[str, Any]) -> str:
    return f"rank {identity['rank']} on host {identity['host']}"


def _process(identity: dict[str, Any]) -> str:
    return f"process {identity['pid']} on host {identity['host']}"
