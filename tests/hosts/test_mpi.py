"""The real `mpirun`, over two hosts."""

import shutil

import pytest
from small_runs import ended_well, only_run, same_bits, small

pytestmark = pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs the command `mpirun` (openmpi-bin)")
MPIRUN = "mpirun --allow-run-as-root --oversubscribe --host alpha:2,beta:2 -n 4"


def test_mpirun_over_two_hosts_needs_no_further_flag(network, one_host):
    hosts = network(2)
    hosts.serve_shells()
    ended_well(hosts.hosts[0].start([*MPIRUN.split(), "lockstep", "train", "cartpole", *small()]))
    same_bits(one_host("cartpole"), only_run(hosts), ranks=4, hosts=2)


@pytest.mark.parametrize("meet", ["--master-addr=alpha", "--init-file=meet"])
def test_mpirun_with_a_place_to_meet(network, one_host, meet):
    hosts = network(2)
    hosts.serve_shells()
    ended_well(hosts.hosts[0].start([*MPIRUN.split(), "lockstep", "train", "cartpole", meet, *small()]))
    same_bits(one_host("cartpole"), only_run(hosts), ranks=4, hosts=2)
