"""The rendezvous over a network: whatever names resolve to, and though links are cut and hosts vanish. No training."""

import json
import sys
import time
from pathlib import Path

import pytest
from network import wait_for

PROGRAM = str(Path(__file__).with_name("rendezvous_node.py"))


def node(machine, rank, count=2, **flags):
    at = {} if "init_file" in flags else {"host": "alpha", "port": 5555}
    flags = {"minimum": count, "maximum": count, "node_rank": rank, **at, **flags}
    return machine.start([sys.executable, PROGRAM, json.dumps(flags)])


def joined(command):
    wait_for(lambda: "joined as " in command.said or not command.running, lambda: command.said)
    assert "joined as " in command.said, command.said
    return command.said.partition("joined as ")[2].splitlines()[0]


@pytest.mark.parametrize("own_name", ["address", "127.0.1.1", "localhost"])
@pytest.mark.parametrize("endpoint", ["alpha", "localhost"])
def test_nodes_join_whatever_the_main_nodes_name_resolves_to(network, own_name, endpoint):
    alpha, beta = network(2, own_name=own_name).hosts
    main, other = node(alpha, 0, host=endpoint), node(beta, 1)
    assert joined(main) == "10.77.0.1 (eth0), main node at 10.77.0.1"
    assert joined(other) == "10.77.0.2 (eth0), main node at 10.77.0.1"


@pytest.mark.parametrize("own_name", ["address", "127.0.1.1", "localhost"])
def test_without_node_ranks_the_endpoints_host_is_the_main_node(network, own_name):
    alpha, beta = network(2, own_name=own_name).hosts
    other, main = node(beta, None), node(alpha, None)
    assert joined(main) == "10.77.0.1 (eth0), main node at 10.77.0.1"
    assert joined(other) == "10.77.0.2 (eth0), main node at 10.77.0.1"


def test_a_link_that_is_cut_for_a_while_does_not_break_the_rendezvous(network):
    alpha, beta, gamma = network(3).hosts
    main, other = node(alpha, 0, 3), node(beta, 1, 3)
    wait_for(lambda: "node 2 is missing" in main.said and "node 2 is missing" in other.said, lambda: main.said)
    beta.cut()
    time.sleep(5)  # as long as a run must survive
    beta.restore()
    last = node(gamma, 2, 3)
    for command in (main, other, last):
        joined(command)


def test_the_place_of_a_vanished_host_is_free_within_half_a_minute(network):
    alpha, beta, gamma = network(3).hosts
    main, other = node(alpha, 0), node(beta, 1)
    joined(main)
    joined(other)
    beta.vanish()
    began = time.monotonic()
    instead = node(gamma, 1)
    assert joined(instead) == "10.77.0.3 (eth0), main node at 10.77.0.1"
    assert time.monotonic() - began < 30
    assert main.running
