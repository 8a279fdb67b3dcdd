"""The rendezvous of the ranks of a world: they find rank 0's store and check that all of them are there."""

import sys
import time
from collections.abc import Callable

from lockstep.distributed.network.interfaces import is_local
from lockstep.distributed.network.membership_check import CompleteError, check_membership
from lockstep.distributed.network.rank_store import RankStore, StoreBackend
from lockstep.distributed.network.rank_zero import find, host, withdraw
from lockstep.distributed.network.rendezvous_address import with_rendezvous_address
from lockstep.distributed.network.routes import choose_interface, several_hosts
from lockstep.distributed.network.store import Store
from lockstep.distributed.network.torchrun import loopback_error, means_this_host
from lockstep.distributed.ranges import named_ranges
from lockstep.errors import PeerError
from lockstep.world import World

_LOOPBACK_S = 25.0  # ranks of other hosts are not expected at a loopback address any longer
_CHECK_EVERY_S = 0.5
_REPORT_AFTER_S = 10.0
_POLL_S = 0.05

_open_stores: dict[tuple[str, str, int, int, int], tuple[RankStore, int]] = {}
"""By init file, address, port, size and rank: the store, and how many rendezvous took place there."""


def rendezvous(backend: StoreBackend, world: World, timeout_s: float) -> Store:
    """Wait for all ranks of the world; returns a store with no keys of an earlier rendezvous; *collective*.

    One server lives as long as rank 0's process, with another prefix for each rendezvous. With a server for each, a
    rank that is ahead could take the previous one for a second rank 0 on the same port, and wait there.
    """
    began = time.monotonic()
    world = with_rendezvous_address(world, timeout_s)
    key = (world.init_file, world.address, world.port, world.size, world.rank)
    opened, number = _open_stores.pop(key, (None, 0))
    if opened is not None and not opened.is_alive:
        opened, number = None, 0
    refused: set[str] = set()
    keep_published: Callable[[], None] | None = None
    while True:
        if opened is None and world.rank == 0:
            opened, keep_published = host(backend, world)
        opened = opened or find(backend, world, began, timeout_s, refused)
        try:
            store = _wait_for_all(opened, number, world, began, timeout_s, keep_published)
        except CompleteError:
            refused.add(opened.nonce)
            if time.monotonic() > began + timeout_s:
                raise PeerError(
                    f"rank {world.rank} found only ranks of an earlier start within startup_timeout_s={timeout_s:g}"
                ) from None
            opened, number = None, 0
            time.sleep(_POLL_S)
        else:
            _open_stores[key] = (opened, number + 1)
            return store


def _wait_for_all(
    opened: RankStore,
    number: int,
    world: World,
    began: float,
    timeout_s: float,
    keep_published: Callable[[], None] | None,
) -> Store:
    """Check the membership, then choose the interface for messages: the one through which ranks reached rank 0."""
    store = opened.for_rendezvous(world.token, number)
    loopback = several_hosts(world) and means_this_host(world.address) and not world.init_file
    checked_at, report_at = 0.0, began + _REPORT_AFTER_S

    def meanwhile() -> None:
        nonlocal checked_at, report_at
        if time.monotonic() < checked_at + _CHECK_EVERY_S:
            return
        checked_at = time.monotonic()
        if keep_published is not None:
            keep_published()
        if world.rank == 0:
            opened.check_foreign_ranks(store)
            if checked_at > report_at:
                missing = named_ranges(rank for rank in range(world.size) if not store.check([f"rank/{rank}"]))
                print(f"waiting for {missing} of {world.size}", file=sys.stderr, flush=True)
                report_at += 3 * _REPORT_AFTER_S
        if loopback and checked_at > began + _LOOPBACK_S and not _other_hosts_came(store, world):
            raise loopback_error(world)

    if several_hosts(world) and not is_local(opened.address):
        store.compare_set("reached", "", opened.address)
    check_membership(store, world, began + timeout_s, timeout_s, meanwhile=meanwhile, serves_store=world.rank == 0)
    withdraw(world, opened)
    if several_hosts(world):
        choose_interface(store.get("reached").decode() if store.check(["reached"]) else opened.address)
    return store


def _other_hosts_came(store: Store, world: World) -> bool:
    """Whether a rank of another host is there. At a loopback address, all "hosts" are then one machine."""
    first = world.rank - world.local_rank
    others = [rank for rank in range(world.size) if not first <= rank < first + world.local_size]
    return any(store.check([f"rank/{rank}"]) for rank in others)
