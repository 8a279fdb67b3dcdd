"""The membership check: all ranks get the same verdict, in whatever order they come."""

import json
import socket
import threading
import time

import pytest

from lockstep.distributed.network.interfaces import listening_socket
from lockstep.distributed.network.membership_check import CompleteError, check_membership
from lockstep.distributed.network.store import MemoryStore, PrefixStore
from lockstep.distributed.network.store_server import StoreClient, StoreServer
from lockstep.distributed.ranges import named_ranges
from lockstep.errors import ConfigError, PeerError
from lockstep.world import World


def check_all(store, *worlds, timeout_s=20.0, **options):
    """The result of each of these ranks, run at once: None or an exception."""
    results = {}

    def enter(index, world):
        try:
            results[index] = check_membership(store, world, time.monotonic() + timeout_s, timeout_s, **options)
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=enter, args=pair) for pair in enumerate(worlds)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [results[index] for index in range(len(worlds))]


def ranks(size, *which):
    return [World(rank=rank, size=size) for rank in which or range(size)]


@pytest.fixture(params=["memory", "client"])
def store(request):
    if request.param == "memory":
        yield PrefixStore("lockstep/x/0", MemoryStore())
    else:
        listener = listening_socket("127.0.0.1", 0)
        server = StoreServer(listener)
        yield PrefixStore("lockstep/x/0", StoreClient.connect("127.0.0.1", listener.getsockname()[1], 5.0))
        server.close()


def test_all_ranks_present_passes(store):
    assert check_all(store, *ranks(5)) == [None] * 5


def test_a_duplicate_rank_is_raised_on_all(store):
    errors = check_all(store, *ranks(4, 0, 1, 1))
    assert {type(error) for error in errors} == {ConfigError}
    assert len({str(error) for error in errors}) == 1
    assert "rank 1 came twice, from process" in str(errors[0])


def test_another_world_size_is_raised_on_all(store):
    errors = check_all(store, World(rank=0, size=3), World(rank=1, size=3), World(rank=2, size=4))
    assert {type(error) for error in errors} == {ConfigError}
    assert all("WORLD_SIZE=3" in str(error) and "WORLD_SIZE=4" in str(error) for error in errors)


def test_unexpected_hosts_are_raised_on_all(store, monkeypatch):
    names = iter(["alpha", "beta"])
    monkeypatch.setattr(socket, "gethostname", lambda: next(names))
    errors = check_all(store, *ranks(3, 0, 2))
    assert {type(error) for error in errors} == {ConfigError}
    assert all("alpha" in str(e) and "beta" in str(e) and "LOCAL_WORLD_SIZE" in str(e) for e in errors)


def test_missing_ranks_are_named_on_all(store):
    errors = check_all(store, *ranks(6, 0, 2, 5), timeout_s=0.5)
    assert {type(error) for error in errors} == {PeerError}
    assert all("ranks 1, 3-4 did not come within startup_timeout_s=0.5" in str(error) for error in errors)


def test_a_complete_store_admits_no_more_ranks(store):
    assert check_all(store, *ranks(2)) == [None, None]
    late = check_all(store, World(rank=1, size=2), World(rank=0, size=3))
    assert [type(error) for error in late] == [CompleteError, CompleteError]


def test_an_error_while_waiting_is_raised_on_all(store):
    def meanwhile():
        raise ConfigError("another run took the file")

    errors = check_all(store, *ranks(3, 0, 1), meanwhile=meanwhile)
    assert [str(error) for error in errors] == ["another run took the file"] * 2


def test_the_rank_that_serves_the_store_waits_until_all_have_read_the_verdict(store):
    """The store ends with the process of rank 0, which must not exit before the others have read the reason."""
    order = []

    def enter(rank):
        try:
            check_membership(store, World(rank=rank, size=3), time.monotonic() + 20, 20, serves_store=rank == 0)
        except ConfigError:
            order.append(rank)

    server = threading.Thread(target=enter, args=(0,))
    server.start()
    while not store.check(["rank/0"]):
        time.sleep(0.01)
    store.add("entered", 1)  # a rank that reads late
    store.compare_set("verdict", "", json.dumps({"error": "no", "code": 2}))
    server.join(0.5)
    assert (server.is_alive(), order) == (True, [])
    store.add("read", 1)
    server.join(20)
    assert order == [0]


def test_a_lost_store_is_reported_as_the_end_of_rank_0():
    class Gone:
        def check(self, _):
            raise RuntimeError("Connection reset by peer\nframes")

    with pytest.raises(PeerError, match=r"rank 1 could not meet all 2 ranks: rank 0 has ended \(Connection") as raised:
        check_membership(Gone(), World(rank=1, size=2), time.monotonic() + 5, 5)
    assert raised.value.rank == 0


def test_ranks_are_named_by_ranges():
    assert [named_ranges(r) for r in ([4], [0, 1, 2], [7, 2, 3], [0, 2])] == [
        "rank 4",
        "ranks 0-2",
        "ranks 2-3, 7",
        "ranks 0, 2",
    ]
