"""What a process says whose peers do not arrive at, or leave, the exchange before the connections are open."""

import base64

import pytest

pytest.importorskip("jax")

from lockstep.distributed import messages
from lockstep.errors import PeerError
from lockstep.jax.collectives.processes import _gather_through_store
from lockstep.world import World

RANK_1 = World(rank=1, size=2, local_rank=1, local_size=2)


class Store(dict):
    """What of a rendezvous store is used."""

    def set(self, key, value):
        self[key] = value

    def check(self, keys):
        return all(key in self for key in keys)


class EndedStore(Store):
    def check(self, keys):
        raise RuntimeError("connection reset\nby peer")


def test_values_are_gathered_in_rank_order():
    store = Store({"hosts/0": base64.b64encode(messages.encode("first")).decode()})
    assert _gather_through_store(store, RANK_1, "second", "hosts", until=0) == ["first", "second"]


def test_a_rank_that_does_not_go_on_is_named():
    with pytest.raises(PeerError, match=r"^rank 0 joined the rendezvous and did not finish connecting$"):
        _gather_through_store(Store(), RANK_1, "second", "hosts", until=0)


def test_a_store_that_ends_names_rank_0():
    with pytest.raises(PeerError, match=r"^rank 0 ended while rank 1 was connecting \(connection reset\)$"):
        _gather_through_store(EndedStore(), RANK_1, "second", "hosts", until=0)
