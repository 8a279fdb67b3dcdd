"""Set up the hosts of a world: which ranks share one, their shared memory, and the connections between hosts."""

import contextlib
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from lockstep.distributed.agreement import Gather
from lockstep.distributed.network.dial import KEY_SIZE, connect_hosts, without_pacing
from lockstep.distributed.network.hosts import Host, Hosts
from lockstep.distributed.network.interfaces import addresses, listening_socket, reachable_addresses, towards
from lockstep.distributed.network.links import Endpoint, Links
from lockstep.distributed.network.slots import Slots
from lockstep.distributed.shared_memory import Segment, supported
from lockstep.distributed.timers import Timers
from lockstep.distributed.watch import MARGIN_S
from lockstep.errors import PeerError
from lockstep.system.cores import usable_cores
from lockstep.system.processes import machine
from lockstep.world import World

_CONNECT_S = 30.0  # all hosts are up: one that has not connected by then never will


def open_hosts(
    world: World,
    gather: Gather,
    timers: Timers,
    num_messages: Counter[str],
    memory: bool,
    timeout_s: float,
    *,
    always: bool = False,
) -> tuple[Segment | None, Hosts | None]:
    """Open this host's shared memory, if it has any, and the collectives of hosts, if they apply; *collective*.

    `gather` gathers values of all ranks over the backend. `memory`: numbers may go through shared memory. `always`: use
    `Hosts` also on one host without shared memory, with each rank as a host.
    """
    segment = Segment.create(0, world.local_size) if world.local_rank == 0 and supported() else None
    try:
        address, cores = segment.address if segment else None, sorted(os.sched_getaffinity(0))
        gathered = gather([_identity(), world.local_rank, world.local_size, address, cores], "hosts")
        hosts = hosts_of(gathered)
        here = next(host.ranks for host in hosts if world.rank in host.ranks)
        whole = len(here) == world.local_size  # else the launchers' variables contradict each other
        if whole and segment is None and (address := gathered[here[0]][3]):
            with contextlib.suppress(OSError):
                segment = Segment.attach(address, world.local_rank, world.local_size)
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(_listener(world)) if len(hosts) > 1 or always else None
            endpoints = gather([whole and segment is not None, *_endpoint(listener)], "hosts")
            shares = [bool(endpoint[0]) for endpoint in endpoints]
            if segment is not None and not (whole and all(shares[rank] for rank in here)):
                segment.close()
                segment = None
            if segment is not None:
                timers.publish(segment.row(world.local_rank))
                if usable_cores(set[int]().union(*(gathered[rank][4] for rank in here))) >= len(here):
                    segment.spin()  # also if the launcher has bound each rank to a core
            if not (memory and all(shares)):
                if len(hosts) == 1 and not always:
                    return segment, None
                hosts = [Host(str(name[0]), range(rank, rank + 1)) for rank, (name, *_) in enumerate(gathered)]
                here = range(world.rank, world.rank + 1)
            links = _links(hosts, world.rank, listener, endpoints, gather, timeout_s) if len(hosts) > 1 else None
        slots = Slots(segment, here[0], timeout_s, timers) if segment is not None and len(here) > 1 else None
        return segment, Hosts(world, hosts, slots, links, timers, num_messages)
    except BaseException:
        if segment is not None:
            segment.close()
        raise


def hosts_of(gathered: Sequence[Sequence[Any]]) -> list[Host]:
    """Group ranks by host from `[identity with the name first, local rank, local size]` of each.

    If launcher variables and machines contradict each other, each rank counts as a host.
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
    with contextlib.suppress(OSError):
        return [socket.gethostname(), machine()]  # ranks attach memory through /proc/PID of another
    return [socket.gethostname(), ""]


def _listener(world: World) -> socket.socket:
    """A listening socket on the interface that gloo uses, else on the one towards rank 0."""
    name = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    own = addresses().get(name, [])
    if not own:
        try:
            own = [towards(world.address, world.port)]
        except OSError:
            own = [*reachable_addresses(), "127.0.0.1"]
    return without_pacing(listening_socket(own[0], 0))


def _endpoint(listener: socket.socket | None) -> list[Any]:
    if listener is None:
        return []
    return [*listener.getsockname()[:2], np.frombuffer(secrets.token_bytes(KEY_SIZE), np.uint8)]


def _links(
    hosts: Sequence[Host],
    rank: int,
    listener: socket.socket | None,
    endpoints: Sequence[Sequence[Any]],
    gather: Gather,
    timeout_s: float,
) -> Links | None:
    """Connect the first ranks of the hosts; if any fails, all ranks raise the same `PeerError`."""
    leads: list[Endpoint] = []
    for host in hosts:
        _, address, port, key = endpoints[host.ranks[0]]
        leads.append(Endpoint(str(host), host.ranks[0], str(address), int(port), cast("np.ndarray", key).tobytes()))
    mine = next((number for number, host in enumerate(hosts) if host.ranks[0] == rank), None)
    links, failure = None, ""
    if mine is not None and listener is not None:
        try:
            links = connect_hosts(listener, leads, mine, time.monotonic() + _CONNECT_S, timeout_s, MARGIN_S)
        except PeerError as error:
            failure = str(error)
    failures = [text for text in gather(failure, "hosts") if text]
    if failures:
        if links is not None:
            links.close()
        raise PeerError(failures[0])
    return links
