"""Commands that do not fit together: every node says why in one clear line, soon, and ends with code 2."""

import re

import pytest
from network import Command, Network
from small_runs import refused, small

AT_ALPHA = "--rdzv-endpoint alpha:5555"


def train(network: Network, number: int, flags: str, environment=None, changes=None) -> Command:
    words = f"lockstep train --task=CartPole-v1 --nproc-per-node 1 {flags}".split()
    return network.hosts[number].start(words + small(**(changes or {})), environment)


def test_a_node_rank_that_does_not_exist(network):
    hosts = network(2)
    refused(
        train(hosts, 0, f"--nnodes 2 --node-rank 0 {AT_ALPHA}"),
        train(hosts, 1, f"--nnodes 2 --node-rank 2 {AT_ALPHA}"),
        each=[r"node.rank[ =]2", r"node.rank[ =]2"],
    )


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.hosts)])
def test_two_nodes_with_the_same_rank(network, rank):
    hosts = network(2)
    flags = f"--nnodes 2 --node-rank {rank} {AT_ALPHA}"
    refused(train(hosts, 0, flags), train(hosts, 1, flags), each=[rf"node.rank[ =]{rank}"] * 2)


@pytest.mark.hosts
def test_one_node_that_says_its_rank_and_one_that_does_not(network):
    hosts = network(2)
    refused(
        train(hosts, 0, f"--nnodes 2 --node-rank 0 {AT_ALPHA}"),
        train(hosts, 1, f"--nnodes 2 {AT_ALPHA}"),
        each=["node-rank"] * 2,
    )


def test_other_settings_on_one_node_are_named(network):
    hosts = network(2)
    flags = f"--nnodes 2 {AT_ALPHA}"
    refused(
        train(hosts, 0, flags),
        train(hosts, 1, flags, changes={"algorithm__gamma": 0.9}),
        each=["gamma.*beta|beta.*gamma"] * 2,
    )


@pytest.mark.hosts
@pytest.mark.parametrize(("package", "name"), [("torch", "torch"), ("lockstep_rl", "lockstep")])
def test_another_version_on_one_node_is_named(network, package, name):
    hosts = network(2)
    shadow = hosts.folder / "shadow" / f"{package}-99.0.dist-info"
    shadow.mkdir(parents=True)
    (shadow / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 99.0\n")
    flags = f"--nnodes 2 {AT_ALPHA}"
    refused(
        train(hosts, 0, flags),
        train(hosts, 1, flags, {"PYTHONPATH": str(shadow.parent)}),
        each=[rf"{name}.*99\.0"] * 2,
    )


@pytest.mark.hosts
def test_other_numbers_of_nodes(network):
    hosts = network(2)
    refused(
        train(hosts, 0, f"--nnodes 2 --node-rank 0 {AT_ALPHA}"),
        train(hosts, 1, f"--nnodes 3 --node-rank 1 {AT_ALPHA}"),
        each=["nnodes"] * 2,
    )


@pytest.mark.hosts
@pytest.mark.parametrize(
    ("run_id", "token", "words"),
    [
        ("124", "one", "--rdzv-id differs: 123 on .*, 124 on"),
        ("123", "another", "LOCKSTEP_TOKEN or --token-file"),
    ],
    ids=["run", "token"],
)
def test_another_run_or_another_token(network, run_id, token, words):
    hosts = network(2)
    refused(
        train(hosts, 0, f"--nnodes 2 {AT_ALPHA} --rdzv-id 123", {"LOCKSTEP_TOKEN": "one"}),
        train(hosts, 1, f"--nnodes 2 {AT_ALPHA} --rdzv-id {run_id}", {"LOCKSTEP_TOKEN": token}),
        each=[words] * 2,
    )


def test_a_port_that_is_in_use(network):
    hosts = network(2)
    program = "import socket, time; s = socket.create_server(('', 5555)); print('up', flush=True); time.sleep(1000)"
    taken = hosts.hosts[0].start(["python", "-c", program])
    taken.tells("up")
    refused(
        train(hosts, 0, f"--nnodes 2 --node-rank 0 {AT_ALPHA}"),
        train(hosts, 1, f"--nnodes 2 --node-rank 1 {AT_ALPHA}"),
        each=["5555.*in use", "5555"],
    )


@pytest.mark.hosts
@pytest.mark.parametrize("endpoint", ["10.77.0.99:5555", "192.168.7.7:5555", "omega:5555"])
def test_an_address_that_cannot_be_reached(network, endpoint):
    hosts = network(2)
    host = endpoint.partition(":")[0]
    refused(
        train(hosts, 0, f"--nnodes 2 --node-rank 0 --rdzv-endpoint {endpoint}"),
        train(hosts, 1, f"--nnodes 2 --node-rank 1 --rdzv-endpoint {endpoint}"),
        each=[re.escape(host)] * 2,
    )


@pytest.mark.hosts
def test_a_name_that_is_loopback_on_the_other_node_is_answered_with_the_cure(network):
    hosts = network(2)
    beta = train(hosts, 1, "--nnodes 2 --node-rank 1 --rdzv-endpoint localhost:5555")
    refused(beta, each=[r"localhost.*--rdzv-endpoint"])
