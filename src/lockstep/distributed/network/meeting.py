"""The ranks of a world find each other at a store and make sure that all are there."""

import sys
import time
from collections.abc import Callable

from lockstep.distributed.network.interfaces import is_local
from lockstep.distributed.network.join import placed
from lockstep.distributed.network.membership_check import CompleteError, Store, check_membership, ranges
from lockstep.distributed.network.rank_zero import host, join, withdraw
from lockstep.distributed.network.routes import choose_interface, several_hosts
from lockstep.distributed.network.stores import Kind, Met
from lockstep.distributed.network.torchrun import loopback_cure, means_this_host
from lockstep.errors import PeerError
from lockstep.world import World

_LOOPBACK_S = 25.0  # when ranks of other hosts cannot be expected any more at a loopback address
_LOOK_S = 0.5
_TELL_S = 10.0  # who waits in silence looks as if it hung
_POLL_S = 0.05

_met: dict[tuple[str, str, int, int, int], tuple[Met, int]] = {}
"""By file, address, port, size and rank: the store that ranks meet at, and how often they have."""


def store_of(kind: Kind, world: World, timeout_s: float) -> Store:
    """Where the ranks of this world, all of them there, are met: a new place each time; *collective*.

    There is one server as long as rank 0's process lives, and a new part of it for each time they meet: a rank in a
    hurry could take the server of the time before for a second one on the same port, and wait there in vain.
    """
    began = time.monotonic()
    world = placed(world, timeout_s)
    key = (world.init_file, world.address, world.port, world.size, world.rank)
    met, times = _met.pop(key, (None, 0))
    if met is not None and not met.answers:  # its process has ended; whoever meets here now starts anew
        met, times = None, 0
    refused: set[str] = set()
    seen_to: Callable[[], None] | None = None
    while True:
        if met is None and world.rank == 0:
            met, seen_to = host(kind, world)
        met = met or join(kind, world, began, timeout_s, refused)
        try:
            store = _meet(met, times, world, began, timeout_s, seen_to)
        except CompleteError:
            refused.add(met.nonce)
            if time.monotonic() > began + timeout_s:
                raise PeerError(
                    f"rank {world.rank} found only ranks of an earlier start within startup_timeout_s={timeout_s:g}"
                ) from None
            met, times = None, 0
            time.sleep(_POLL_S)
        else:
            _met[key] = (met, times + 1)
            return store


def _meet(
    met: Met, times: int, world: World, began: float, timeout_s: float, seen_to: Callable[[], None] | None
) -> Store:
    """The roll call; then messages take the way that ranks came."""
    store = met.part(world.token, times)
    lonely = several_hosts(world) and means_this_host(world.address) and not world.init_file
    looked, tell = 0.0, began + _TELL_S

    def meanwhile() -> None:
        nonlocal looked, tell
        if time.monotonic() < looked + _LOOK_S:
            return
        looked = time.monotonic()
        if seen_to is not None:
            seen_to()
        if world.rank == 0:
            met.check_strangers(store)
            if looked > tell:
                missing = ranges(rank for rank in range(world.size) if not store.check([f"rank/{rank}"]))
                print(f"waiting for {missing} of {world.size}", file=sys.stderr, flush=True)
                tell += 3 * _TELL_S
        if lonely and looked > began + _LOOPBACK_S and not _others_came(store, world):
            raise loopback_cure(world)

    if several_hosts(world) and not is_local(met.address):
        store.compare_set("reached", "", met.address)
    check_membership(store, world, began + timeout_s, timeout_s, meanwhile=meanwhile, holds=world.rank == 0)
    withdraw(world, met)
    if several_hosts(world):
        choose_interface(store.get("reached").decode() if store.check(["reached"]) else met.address)
    return store


def _others_came(store: Store, world: World) -> bool:
    """Whether a rank of another host is there: if at a loopback address, what is called hosts is one machine."""
    first = world.rank - world.local_rank
    others = [rank for rank in range(world.size) if not first <= rank < first + world.local_size]
    return any(store.check([f"rank/{rank}"]) for rank in others)
