"""Ranks at one store: the same verdict for all, whatever order they come in."""

import json
import socket
import threading
import time

import pytest

from lockstep.distributed.network.interfaces import listening_socket
from lockstep.distributed.network.key_values import Client, KeyValues, Part, Server
from lockstep.distributed.network.membership_check import CompleteError, check_membership, ranges
from lockstep.errors import ConfigError, PeerError
from lockstep.world import World


def call(store, *worlds, timeout_s=20.0, **options):
    """What each of these ranks, all at once, comes to: None or an exception."""
    ends = {}

    def enter(place, world):
        try:
            ends[place] = check_membership(store, world, time.monotonic() + timeout_s, timeout_s, **options)
        except Exception as error:
            ends[place] = error

    threads = [threading.Thread(target=enter, args=pair) for pair in enumerate(worlds)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [ends[place] for place in range(len(worlds))]


def ranks(size, *which):
    return [World(rank=rank, size=size) for rank in which or range(size)]


@pytest.fixture(params=["here", "elsewhere"])
def store(request):
    if request.param == "here":
        yield Part("lockstep/x/0", KeyValues())
    else:
        with listening_socket("127.0.0.1", 0) as listener:
            Server(listener)
            yield Part("lockstep/x/0", Client("127.0.0.1", listener.getsockname()[1], 5.0))
            listener.shutdown(socket.SHUT_RDWR)  # wakes the server


def test_all_there(store):
    assert call(store, *ranks(5)) == [None] * 5


def test_one_twice_is_told_to_all(store):
    errors = call(store, *ranks(4, 0, 1, 1))
    assert {type(error) for error in errors} == {ConfigError}
    assert len({str(error) for error in errors}) == 1
    assert "rank 1 came twice, from process" in str(errors[0])


def test_another_number_is_told_to_all(store):
    errors = call(store, World(rank=0, size=3), World(rank=1, size=3), World(rank=2, size=4))
    assert {type(error) for error in errors} == {ConfigError}
    assert all("WORLD_SIZE=3" in str(error) and "WORLD_SIZE=4" in str(error) for error in errors)


def test_hosts_that_were_not_told_of_are_told_to_all(store, monkeypatch):
    names = iter(["alpha", "beta"])
    monkeypatch.setattr(socket, "gethostname", lambda: next(names))
    errors = call(store, *ranks(3, 0, 2))
    assert {type(error) for error in errors} == {ConfigError}
    assert all("alpha" in str(e) and "beta" in str(e) and "LOCAL_WORLD_SIZE" in str(e) for e in errors)


def test_who_is_missing_is_named_once_for_all(store):
    errors = call(store, *ranks(6, 0, 2, 5), timeout_s=0.5)
    assert {type(error) for error in errors} == {PeerError}
    assert all("ranks 1, 3-4 did not come within startup_timeout_s=0.5" in str(error) for error in errors)


def test_ranks_of_an_earlier_start_do_not_count_for_this_one(store):
    assert call(store, *ranks(2)) == [None, None]
    late = call(store, World(rank=1, size=2), World(rank=0, size=3))
    assert [type(error) for error in late] == [CompleteError, CompleteError]


def test_what_one_finds_out_while_waiting_ends_all(store):
    def meanwhile():
        raise ConfigError("another run took the file")

    errors = call(store, *ranks(3, 0, 1), meanwhile=meanwhile)
    assert [str(error) for error in errors] == ["another run took the file"] * 2


def test_whoever_holds_the_store_stays_until_all_have_read(store):
    """Rank 0 ends the store with its process: it must not leave before the others know why."""
    order = []

    def enter(rank):
        try:
            check_membership(store, World(rank=rank, size=3), time.monotonic() + 20, 20, holds=rank == 0)
        except ConfigError:
            order.append(rank)

    holder = threading.Thread(target=enter, args=(0,))
    holder.start()
    while not store.check(["rank/0"]):
        time.sleep(0.01)
    store.add("entered", 1)  # one that has come, and reads late
    store.compare_set("verdict", "", json.dumps({"error": "no", "code": 2}))
    holder.join(0.5)
    assert (holder.is_alive(), order) == (True, [])
    store.add("read", 1)
    holder.join(20)
    assert order == [0]


def test_the_end_of_the_store_is_told_as_the_end_of_rank_0():
    class Gone:
        def check(self, _):
            raise RuntimeError("Connection reset by peer\nframes")

    with pytest.raises(PeerError, match=r"rank 1 could not meet all 2 ranks: rank 0 has ended \(Connection") as told:
        check_membership(Gone(), World(rank=1, size=2), time.monotonic() + 5, 5)
    assert told.value.rank == 0


def test_ranges():
    assert [ranges(r) for r in ([4], [0, 1, 2], [7, 2, 3], [0, 2])] == [
        "rank 4",
        "ranks 0-2",
        "ranks 2-3, 7",
        "ranks 0, 2",
    ]
