"""The real `mpirun`, over two hosts."""

import shutil

import pytest
from small_runs import ended_well, only_run, same_bits, small

needs_open_mpi = pytest.mark.skipif(shutil.which("mpirun.openmpi") is None, reason="needs openmpi-bin")
needs_mpich = pytest.mark.skipif(shutil.which("mpiexec.hydra") is None, reason="needs mpich")
MPIRUN = "mpirun.openmpi --allow-run-as-root --oversubscribe --host alpha:2,beta:2 -n 4"


@pytest.mark.hosts
@needs_open_mpi
def test_mpirun_over_two_hosts_needs_no_further_flag(network, one_host):
    hosts = network(2)
    hosts.serve_shells()
    ended_well(hosts.hosts[0].start([*MPIRUN.split(), "lockstep", "train", "cartpole", *small()]))
    same_bits(one_host("cartpole"), only_run(hosts), ranks=4, hosts=2)


@needs_open_mpi
@pytest.mark.hosts
@pytest.mark.parametrize("meet", ["--master-addr=alpha", "--init-file=meet"])
def test_mpirun_with_a_place_to_meet(network, one_host, meet):
    hosts = network(2)
    hosts.serve_shells()
    ended_well(hosts.hosts[0].start([*MPIRUN.split(), "lockstep", "train", "cartpole", meet, *small()]))
    same_bits(one_host("cartpole"), only_run(hosts), ranks=4, hosts=2)


@needs_mpich
@pytest.mark.hosts
def test_mpich_over_two_hosts_needs_no_further_flag(network, one_host):
    hosts = network(2)
    hosts.serve_shells()
    words = ["mpiexec.hydra", "-launcher", "ssh", "-hosts", "alpha,beta", "-ppn", "2", "-n", "4"]
    ended_well(hosts.hosts[0].start([*words, "lockstep", "train", "cartpole", *small()]))
    same_bits(one_host("cartpole"), only_run(hosts), ranks=4, hosts=2)
