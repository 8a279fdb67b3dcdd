"""The rendezvous address where MASTER_ADDR is not set: from flags, which may contradict the launcher, or from it."""

import os
import socket
import threading
from dataclasses import replace

import pytest

from lockstep.distributed.network import rendezvous_address
from lockstep.distributed.network.interfaces import reachable_addresses
from lockstep.distributed.network.pmi import broadcast_from_rank_0
from lockstep.distributed.network.rendezvous_address import with_rendezvous_address, with_rendezvous_flags
from lockstep.errors import ConfigError, PeerError
from lockstep.world import World

SRUN = World(rank=1, size=4, local_rank=1, local_size=2, address="gpu1", port=12345, launcher="SLURM")
MPIRUN = World(rank=1, size=4, local_rank=1, local_size=2, launcher="Open MPI")
NOTHING = {"master_addr": None, "master_port": None, "init_file": None}


def test_flags_set_the_address():
    assert with_rendezvous_flags(SRUN, **NOTHING) == SRUN
    world = with_rendezvous_flags(SRUN, **NOTHING | {"master_addr": "10.0.0.1"}, environment={})
    assert (world.address, world.port, world.rank, world.local_rank) == ("10.0.0.1", 12345, 1, 1)
    world = with_rendezvous_flags(MPIRUN, **NOTHING | {"master_addr": "10.0.0.1"}, environment={})
    assert (world.address, world.port) == ("10.0.0.1", 29500)
    world = with_rendezvous_flags(MPIRUN, **NOTHING | {"master_addr": "h", "master_port": "4000"}, environment={})
    assert (world.address, world.port) == ("h", 4000)
    world = with_rendezvous_flags(SRUN, **NOTHING | {"init_file": "met"}, environment={})
    assert (world.init_file, world.port) == (os.path.abspath("met"), 0)


@pytest.mark.parametrize(
    ("flags", "variables", "words"),
    [
        ({"init_file": "f", "master_addr": "h"}, {}, ["--init-file f", "--master-addr h", "give one"]),
        ({"init_file": "f", "master_port": "1"}, {}, ["--init-file f", "--master-port 1"]),
        ({"master_addr": "h"}, {"MASTER_ADDR": "g"}, ["--master-addr h", "MASTER_ADDR=g", "SLURM"]),
        ({"master_port": "1"}, {"MASTER_PORT": "2"}, ["--master-port 1", "MASTER_PORT=2"]),
        ({"init_file": "f"}, {"MASTER_ADDR": "g"}, ["--init-file f", "MASTER_ADDR=g"]),
        ({"master_port": "http"}, {}, ["--master-port http"]),
        ({"master_port": "65536"}, {}, ["--master-port 65536"]),
        ({"master_port": "0"}, {}, ["--master-port 0"]),
        ({"init_file": " "}, {}, ["--init-file is empty"]),
    ],
)
def test_flags_that_contradict_are_refused(flags, variables, words):
    with pytest.raises(ConfigError) as refused:
        with_rendezvous_flags(SRUN, **NOTHING | flags, environment=variables)
    assert all(word in str(refused.value) for word in words), refused.value


def test_flags_that_agree_with_the_launcher_are_accepted():
    world = with_rendezvous_flags(SRUN, **NOTHING | {"master_addr": "g"}, environment={"MASTER_ADDR": "g"})
    assert world.address == "g"


def test_an_address_without_ranks_is_refused():
    with pytest.raises(ConfigError, match=r"--init-file f, but nothing says which rank .* --nnodes"):
        with_rendezvous_flags(World(), **NOTHING | {"init_file": "f"})


# -- launchers ----------------------------------------------------------------------------------------------


def test_an_address_that_is_set_is_kept():
    for world in (SRUN, World(size=2, init_file="f")):
        assert with_rendezvous_address(world, 1.0, {}) is world
    assert with_rendezvous_address(MPIRUN, 1.0, {"MASTER_ADDR": "h"}).port == 29500
    with pytest.raises(ConfigError, match=r"port=0.*MASTER_PORT"):
        with_rendezvous_address(World(size=2), 1.0, {})


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("637403136.0;tcp://10.0.0.1:56783", "10.0.0.1"),
        ("1.0;tcp://10.0.0.1,10.1.0.1:5;tcp6://[fd00::2,fd00::3]:4", "10.0.0.1,10.1.0.1,fd00::2,fd00::3"),
    ],
)
def test_open_mpi_over_hosts_uses_the_address_of_mpirun(uri, address):
    worlds = {with_rendezvous_address(MPIRUN, 1.0, {"OMPI_MCA_orte_hnp_uri": uri}) for _ in range(2)}
    assert [world.address for world in worlds] == [address]
    assert all(10_000 <= world.port < 30_000 for world in worlds)


def test_a_port_alone_is_no_address_over_hosts():
    uri = {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:5"}
    world = with_rendezvous_flags(MPIRUN, **NOTHING | {"master_port": "4000"}, environment={})
    found = with_rendezvous_address(world, 1.0, uri)
    assert (found.address, found.port) == ("10.0.0.1", 4000)
    here = replace(world, local_size=4)
    assert with_rendezvous_address(here, 1.0, uri) is here
    given = replace(world, address="10.0.0.7")
    assert with_rendezvous_address(given, 1.0, uri) is given


@pytest.mark.parametrize("variables", [{}, {"OMPI_MCA_orte_hnp_uri": "1.0;usock"}])
def test_open_mpi_without_an_address_names_the_flags(variables):
    with pytest.raises(ConfigError, match=r"--master-addr HOST .* --init-file FILE"):
        with_rendezvous_address(MPIRUN, 1.0, variables)


def test_mpich_over_hosts_without_pmi_names_the_flags():
    world = World(rank=1, size=4, local_rank=1, local_size=2, launcher="MPICH")
    with pytest.raises(ConfigError, match=r"--master-addr HOST .* --init-file FILE"):
        with_rendezvous_address(world, 1.0, {})


class Mpiexec:
    """The PMI-1 server of mpiexec, for two ranks."""

    def __init__(self) -> None:
        pairs = [socket.socketpair() for _ in range(2)]
        self.ends = [theirs for _, theirs in pairs]
        self.commands = [[], []]
        self._values = {}
        self._barrier = threading.Barrier(2)
        self._threads = [threading.Thread(target=self._serve, args=(i, ours)) for i, (ours, _) in enumerate(pairs)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        for end in self.ends:
            end.close()
        self._barrier.abort()
        for thread in self._threads:
            thread.join(10)

    def _serve(self, rank, link) -> None:
        with link, link.makefile("rw") as lines:
            for line in lines:
                words = dict(word.split("=", 1) for word in line.split())
                self.commands[rank].append(words["cmd"])
                try:
                    answer = self._answer(words)
                except threading.BrokenBarrierError:
                    return
                lines.write(answer + "\n")
                lines.flush()

    def _answer(self, words) -> str:
        if words["cmd"] == "put":
            self._values[words["key"]] = words["value"]
        if words["cmd"] == "barrier_in":
            self._barrier.wait(20)
        return {
            "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_my_kvsname": "cmd=my_kvsname kvsname=kvs_1",
            "put": "cmd=put_result rc=0 msg=success",
            "barrier_in": "cmd=barrier_out",
            "get": f"cmd=get_result rc=0 msg=success value={self._values.get('lockstep')}",
            "finalize": "cmd=finalize_ack",
        }[words["cmd"]]


def test_mpich_broadcasts_the_address_of_rank_0(monkeypatch):
    monkeypatch.setattr(rendezvous_address, "_pmi_addresses", {})
    mpiexec = Mpiexec()
    worlds = [World(rank=rank, size=2, local_rank=0, local_size=1, launcher="MPICH") for rank in range(2)]
    found = {}

    def ask(rank):
        found[rank] = with_rendezvous_address(worlds[rank], 20.0, {"PMI_FD": str(mpiexec.ends[rank].fileno())})

    threads = [threading.Thread(target=ask, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    mpiexec.close()
    assert found[0].address == found[1].address == ",".join(reachable_addresses())
    assert found[0].port == found[1].port > 0
    assert [commands[-1] for commands in mpiexec.commands] == ["finalize", "finalize"]  # else mpiexec reports a failure
    assert with_rendezvous_address(worlds[0], 1.0, {}) == found[0]  # mpiexec answers once per process
    with_port = with_rendezvous_address(replace(worlds[0], port=4000), 1.0, {})
    assert (with_port.address, with_port.port) == (found[0].address, 4000)


def test_waiting_for_the_other_ranks_of_mpiexec_is_bounded():
    mpiexec = Mpiexec()
    try:
        with pytest.raises(PeerError, match="through mpiexec within"):
            broadcast_from_rank_0("x", 0.3, {"PMI_FD": str(mpiexec.ends[0].fileno())})
    finally:
        mpiexec.close()
