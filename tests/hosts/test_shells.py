"""Ranks started by hand on two hosts, as launchers that nobody has heard of would: one command and a few variables."""

import pytest
from network import Network
from small_runs import ended_well, refused, same_bits, small

MEET = {"address": ["--master-addr", "alpha", "--master-port", "5555"], "file": ["--init-file", "meet"]}


def rank(network: Network, host: int, number: int, meet: list[str], size: int = 2, token: str = ""):
    """Rank `number` of `size`, on one of the hosts."""
    variables = {"RANK": str(number), "WORLD_SIZE": str(size), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    variables |= {"LOCKSTEP_TOKEN": token} if token else {}
    words = ["lockstep", "train", "cartpole", "--run-dir", "run", *meet, *small()]
    return network.hosts[host].start(words, variables)


@pytest.mark.hosts
@pytest.mark.parametrize("own_name", ["address", "127.0.1.1", "localhost"])
@pytest.mark.parametrize("meet", MEET.values(), ids=MEET)
def test_two_ranks_meet(network, one_host, meet, own_name):
    hosts = network(2, own_name=own_name)
    ended_well(rank(hosts, 0, 0, meet), rank(hosts, 1, 1, meet))
    same_bits(one_host("cartpole"), hosts.shared / "run", ranks=2, hosts=2)


@pytest.mark.hosts
@pytest.mark.parametrize("meet", MEET.values(), ids=MEET)
def test_another_world_size_is_told_to_both(network, meet):
    hosts = network(2)
    refused(rank(hosts, 0, 0, meet), rank(hosts, 1, 1, meet, size=3), each=["(?i)world.size|ranks"] * 2)


@pytest.mark.hosts
@pytest.mark.parametrize("meet", MEET.values(), ids=MEET)
def test_one_rank_twice_is_told_to_all(network, meet):
    hosts = network(2)
    commands = [rank(hosts, 0, 0, meet, size=3), rank(hosts, 0, 1, meet, size=3), rank(hosts, 1, 1, meet, size=3)]
    refused(*commands, each=["rank 1.*twice|twice.*rank 1|rank 1.*two|two.*rank 1"] * 3)


@pytest.mark.hosts
def test_a_port_that_is_in_use_is_told(network):
    hosts = network(2)
    program = "import socket, time; s = socket.create_server(('', 5555)); print('up', flush=True); time.sleep(1000)"
    taken = hosts.hosts[0].start(["python", "-c", program])
    taken.tells("up")
    refused(rank(hosts, 0, 0, MEET["address"]), each=["5555.*in use"])


@pytest.mark.hosts
def test_an_address_that_nobody_has_is_told(network):
    hosts = network(2)
    meet = ["--master-addr", "10.77.0.99", "--master-port", "5555"]
    refused(rank(hosts, 0, 0, meet), rank(hosts, 1, 1, meet), each=[r"10\.77\.0\.99"] * 2)
