"""Where rank 0 listens, and what it publishes."""

import time

import pytest

from lockstep.distributed.network import rank_zero
from lockstep.distributed.network.interfaces import is_local
from lockstep.distributed.network.rank_store import LockstepStoreBackend
from lockstep.torch.collectives.stores import TorchStoreBackend
from lockstep.world import World

needs_ipv6 = pytest.mark.skipif(not is_local("::1"), reason="this machine has no IPv6")


def rank_of(rank, folder):
    return World(
        rank=rank, size=2, local_rank=0, local_size=1, node_rank=rank, init_file=str(folder / "meet"), launcher="SLURM"
    )


@needs_ipv6
@pytest.mark.parametrize("backend", [LockstepStoreBackend(), TorchStoreBackend()], ids=["lockstep", "torch"])
@pytest.mark.parametrize("addresses", [["::1"], ["127.0.0.2", "::1"]])
def test_ranks_are_met_at_each_address_of_the_init_file(tmp_path, monkeypatch, backend, addresses):
    monkeypatch.setattr(rank_zero, "reachable_addresses", lambda: addresses)
    opened, _ = rank_zero.host(backend, rank_of(0, tmp_path))
    opened.store.set("key", "value")
    for address in addresses:
        port = rank_zero.init_file.read(tmp_path / "meet").port
        store = backend.connect(address, port)
        assert bytes(store.get("key")) == b"value"
    found = rank_zero.find(backend, rank_of(1, tmp_path), time.monotonic(), 5.0, set())
    assert found.nonce == opened.nonce


def test_ipv6_is_left_out_where_no_address_needs_it(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_zero, "reachable_addresses", lambda: ["10.0.0.1", "10.1.0.1"])
    assert rank_zero._where_to_listen(rank_of(0, tmp_path)) == ("", 0, ["10.0.0.1", "10.1.0.1"])
    monkeypatch.setattr(rank_zero, "is_local", lambda address: address != "::")
    monkeypatch.setattr(rank_zero, "reachable_addresses", lambda: ["10.0.0.1", "fd00::1"])
    assert rank_zero._where_to_listen(rank_of(0, tmp_path))[0] == "", "a kernel without IPv6"
