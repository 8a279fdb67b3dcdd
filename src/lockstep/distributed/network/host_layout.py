"""Ranks find out who shares a host, open their common memory, and connect the hosts; once, when a world opens."""

import contextlib
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from lockstep.distributed.network.dial import KEY_SIZE, connected, unpaced
from lockstep.distributed.network.hosts import Host, Hosts
from lockstep.distributed.network.interfaces import addresses, listening_socket, reachable_addresses, towards
from lockstep.distributed.network.links import Endpoint, Links
from lockstep.distributed.network.slots import Slots
from lockstep.distributed.shared_memory import Segment, supported
from lockstep.distributed.timers import Timers
from lockstep.distributed.watch import MARGIN_S
from lockstep.errors import PeerError
from lockstep.system.cores import usable_cores
from lockstep.world import World

_CONNECT_S = 30.0  # all have just met: what does not connect by then will not
Gather = Callable[[Any, str], list[Any]]


def settle(
    world: World,
    gather: Gather,
    timers: Timers,
    num_messages: Counter[str],
    memory: bool,
    timeout_s: float,
    *,
    always: bool = False,
) -> tuple[Segment | None, Hosts | None]:
    """The memory of this host, where it has one, and the hosts, where they serve; *collective*.

    Args:
        world: who takes part.
        gather: gives every rank the values of all, over the backend.
        timers: told while this rank waits, and shown to the others of the host.
        num_messages: sent by tag; the hosts add theirs.
        memory: whether numbers may go through shared memory.
        timeout_s: bound on a collective.
        always: whether hosts serve also the ranks of one host that share no memory, each as if it had its own.
    """
    segment = Segment.create(0, world.local_size) if world.local_rank == 0 and supported() else None
    address, cores = segment.address if segment else None, sorted(os.sched_getaffinity(0))
    gathered = gather([_identity(), world.local_rank, world.local_size, address, cores], "hosts")
    hosts = hosts_of(gathered)
    here = next(host.ranks for host in hosts if world.rank in host.ranks)
    whole = len(here) == world.local_size  # else what launchers say of hosts does not fit together
    if whole and segment is None and (address := gathered[here[0]][3]):
        with contextlib.suppress(OSError):
            segment = Segment.attach(address, world.local_rank, world.local_size)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listener(world)) if len(hosts) > 1 or always else None
        places = gather([whole and segment is not None, *_place(listener)], "hosts")
        shares = [bool(place[0]) for place in places]
        if segment is not None and not (whole and all(shares[rank] for rank in here)):
            segment.close()
            segment = None
        if segment is not None:
            timers.publish(segment.row(world.local_rank))
            if usable_cores(set[int]().union(*(gathered[rank][4] for rank in here))) >= len(here):
                segment.spin()  # also where the launcher has bound each rank to a core
        if not (memory and all(shares)):
            if len(hosts) == 1 and not always:
                return segment, None
            hosts = [Host(str(name[0]), range(rank, rank + 1)) for rank, (name, *_) in enumerate(gathered)]
            here = range(world.rank, world.rank + 1)
        links = _links(hosts, world.rank, listener, places, gather, timeout_s) if len(hosts) > 1 else None
    slots = Slots(segment, here[0], timeout_s, timers) if segment is not None and len(here) > 1 else None
    return segment, Hosts(world, hosts, slots, links, timers, num_messages)


def hosts_of(gathered: Sequence[Sequence[Any]]) -> list[Host]:
    """Blocks of ranks that are of one host by name, and by what their launcher says; each rank alone if it is mixed up.

    Args:
        gathered: by rank: what identifies its machine, name first; its local rank; how many are local.
    """
    hosts: list[Host] = []
    rank = 0
    while rank < len(gathered):
        identity, _, local_size, *_ = gathered[rank]
        ranks = range(rank, rank + local_size)
        if ranks.stop > len(gathered) or any(
            list(gathered[other][:3]) != [identity, local_rank, local_size] for local_rank, other in enumerate(ranks)
        ):
            return [Host(str(alone[0][0]), range(number, number + 1)) for number, alone in enumerate(gathered)]
        hosts.append(Host(str(identity[0]), ranks))
        rank = ranks.stop
    return hosts


def _identity() -> list[str]:
    """What no two machines have in common."""
    with contextlib.suppress(OSError):
        return [socket.gethostname(), Path("/proc/sys/kernel/random/boot_id").read_text().strip()]
    return [socket.gethostname(), ""]


def _listener(world: World) -> socket.socket:
    """Listens where the other hosts reach this one: at the interface that gloo uses, else towards rank 0."""
    name = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    own = addresses().get(name, [])
    if not own:
        try:
            own = [towards(world.address, world.port)]
        except OSError:
            own = [*reachable_addresses(), "127.0.0.1"]
    return unpaced(listening_socket(own[0], 0))


def _place(listener: socket.socket | None) -> list[Any]:
    if listener is None:
        return []
    return [*listener.getsockname()[:2], np.frombuffer(secrets.token_bytes(KEY_SIZE), np.uint8)]


def _links(
    hosts: Sequence[Host],
    rank: int,
    listener: socket.socket | None,
    places: Sequence[Sequence[Any]],
    gather: Gather,
    timeout_s: float,
) -> Links | None:
    """Connections of the first ranks; if any fails, all ranks raise the same `PeerError`."""
    leads = [Endpoint(str(h), h.ranks[0], *_reached(places[h.ranks[0]])) for h in hosts]
    mine = next((number for number, host in enumerate(hosts) if host.ranks[0] == rank), None)
    links, said = None, ""
    if mine is not None and listener is not None:
        try:
            links = connected(listener, leads, mine, time.monotonic() + _CONNECT_S, timeout_s, MARGIN_S)
        except PeerError as error:
            said = str(error)
    failures = [text for text in gather(said, "hosts") if text]
    if failures:
        if links is not None:
            links.close()
        raise PeerError(failures[0])
    return links


def _reached(place: Sequence[Any]) -> tuple[str, int, bytes]:
    _, address, port, key = place
    return str(address), int(port), cast("np.ndarray", key).tobytes()
