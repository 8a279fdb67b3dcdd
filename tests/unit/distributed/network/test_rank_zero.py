"""Where rank 0 listens, and what it publishes."""

import time

import pytest

from lockstep.distributed.network import rank_zero
from lockstep.distributed.network.interfaces import is_local
from lockstep.distributed.network.rank_store import LockstepStoreBackend
from lockstep.errors import ConfigError, PeerError
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


UNRESOLVED = ConfigError("host 'pod-0' cannot be resolved on this machine")


@pytest.fixture
def late(monkeypatch):
    """Rank 0 is at a name that resolves, and has a route, some time after the patience with mistakes has ended."""
    began = time.monotonic()

    def resolved(_):
        if time.monotonic() < began + 0.6:
            raise UNRESOLVED
        return ["10.0.0.1"]

    def connect(*_):
        if time.monotonic() < began + 0.9:
            raise OSError("No route to host")
        return "the store"

    monkeypatch.setattr(rank_zero, "_PATIENCE_S", 0.3)
    monkeypatch.setattr(rank_zero, "_resolved", resolved)
    monkeypatch.setattr(rank_zero, "_connect_to_any", connect)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return World(rank=1, size=2, local_rank=0, local_size=1, node_rank=1, address="pod-0", port=29500)


def test_a_pod_that_is_scheduled_late_is_waited_for(late, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.2")
    assert rank_zero.find(LockstepStoreBackend(), late, time.monotonic(), 20.0, set()) == "the store"


def test_elsewhere_a_name_that_does_not_resolve_is_a_mistake(late):
    with pytest.raises(ConfigError, match="'pod-0' cannot be resolved"):
        rank_zero.find(LockstepStoreBackend(), late, time.monotonic(), 20.0, set())


def test_a_pod_that_never_comes_is_named_with_the_reason(late, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.2")
    with pytest.raises(PeerError, match=r"within startup_timeout_s=0\.5: host 'pod-0' cannot be resolved"):
        rank_zero.find(LockstepStoreBackend(), late, time.monotonic(), 0.5, set())
