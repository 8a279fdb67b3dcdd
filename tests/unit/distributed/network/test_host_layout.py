"""Which ranks are of one host, by what they say of themselves."""

import os
from collections import Counter

import pytest

from lockstep import World
from lockstep.distributed.network import host_layout
from lockstep.distributed.network.host_layout import hosts_of, open_hosts
from lockstep.distributed.shared_memory import Segment
from lockstep.distributed.timers import Timers
from lockstep.errors import PeerError

ALPHA, BETA = ["alpha", "1f"], ["beta", "2e"]


def names(told):
    return [str(host) for host in hosts_of(told)]


def test_blocks_of_local_ranks_are_hosts():
    told = [[ALPHA, 0, 1, None], [BETA, 0, 3, "x"], [BETA, 1, 3, None], [BETA, 2, 3, None]]
    assert names(told) == ["host alpha (rank 0)", "host beta (ranks 1-3)"]


def test_two_launchers_on_one_machine_are_two_hosts():
    assert names([[ALPHA, 0, 2, "x"], [ALPHA, 1, 2, None]] * 2) == ["host alpha (ranks 0-1)", "host alpha (ranks 2-3)"]


@pytest.mark.parametrize(
    "told",
    [
        [[ALPHA, 0, 2], [BETA, 0, 2], [ALPHA, 1, 2], [BETA, 1, 2]],  # dealt out in turn
        [[ALPHA, 1, 2], [ALPHA, 0, 2], [BETA, 0, 2], [BETA, 1, 2]],  # in another order
        [[ALPHA, 0, 4], [ALPHA, 1, 4], [BETA, 2, 4], [BETA, 3, 4]],  # a user who does not know of hosts
        [[ALPHA, 0, 2], [ALPHA, 1, 2], [BETA, 0, 3], [BETA, 1, 3]],  # more than there are
        [[ALPHA, 0, 2], [["alpha", "other"], 1, 2], [BETA, 0, 2], [BETA, 1, 2]],  # two machines with one name
    ],
)
def test_where_that_does_not_fit_each_rank_is_alone(told):
    assert names(told) == [f"host {place[0][0]} (rank {rank})" for rank, place in enumerate(told)]


@pytest.mark.parametrize("last_answer", [1, 2])
def test_memory_is_closed_where_hosts_cannot_connect(last_answer, monkeypatch):
    """Of two hosts; ranks end before the endpoints of the hosts are gathered, or the hosts cannot connect."""
    create, made, asked = Segment.create, [], []

    def kept(index, count):
        made.append(create(index, count))
        return made[-1]

    def gather(value, tag):
        asked.append(tag)
        if len(asked) > last_answer:
            raise PeerError("rank 1 ended")
        return [value, [BETA, 0, 1, None, [0]] if len(asked) == 1 else value]

    def refuse(*_):
        raise PeerError("alpha and beta did not connect")

    monkeypatch.setattr(Segment, "create", kept)
    monkeypatch.setattr(host_layout, "connect_hosts", refuse)
    with pytest.raises(PeerError, match="rank 1 ended"):
        open_hosts(World(rank=0, size=2, local_size=1), gather, Timers(), Counter(), memory=True, timeout_s=1.0)
    assert len(asked) == last_answer + 1
    assert [os.path.lexists(segment.address) for segment in made] == [False], "the memory was left open"


def test_process_namespaces_of_one_machine_are_apart(monkeypatch):
    """In another one, the same process id is another process, whose files are not the memory."""
    here, stat = host_layout._identity(), os.stat
    assert here == host_layout._identity()

    def elsewhere(path, *args, **kwargs):
        return stat("/proc/self/ns/uts" if path == "/proc/self/ns/pid" else path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", elsewhere)
    there = host_layout._identity()
    assert there != here and there[0] == here[0]
    assert len(hosts_of([[here, 0, 2, "/proc/1/fd/5"], [there, 1, 2, None]])) == 2
