"""Links that are cut: for a moment, and for good."""

import time

import pytest
from network import Network, wait_for
from small_runs import BATCH, Paced, ended_well, same_bits, steps, training

CUT_S = 5.0
UPDATES = 60
TORCHRUN = (
    "python -m torch.distributed.run --nproc_per_node=2 --nnodes=2 --node_rank={} --rdzv_id=123 --rdzv_backend=c10d "
    "--rdzv_endpoint=alpha:5555 -m lockstep.train --run-dir run"
)
OURS = "lockstep train --nnodes 2 --node-rank {} --nproc-per-node 2 --rdzv-endpoint alpha:5555 --run-dir run"


def start(network: Network, command: str, paced: Paced):
    """Both hosts train, and where."""
    commands = [host.start(command.format(rank).split() + paced.arguments) for rank, host in enumerate(network.hosts)]
    return commands, network.shared / "run"


@pytest.mark.hosts
@pytest.mark.parametrize("command", [OURS, TORCHRUN], ids=["ours", "torchrun"])
def test_a_link_that_is_cut_for_five_seconds_costs_only_time(network, command):
    hosts = network(2)
    paced = Paced(hosts.folder, UPDATES)
    commands, run_dir = start(hosts, command, paced)
    training(run_dir, commands[0], beyond=2 * BATCH)
    hosts.hosts[1].cut()
    time.sleep(CUT_S / 2)  # what was under way has arrived
    half = steps(run_dir)
    time.sleep(CUT_S / 2)
    assert steps(run_dir) == half < UPDATES * BATCH, "the ranks train on without each other"
    hosts.hosts[1].restore()
    training(run_dir, commands[0], beyond=half)
    paced.let_go()
    ended_well(*commands)
    same_bits(paced.alone(), run_dir, ranks=4, hosts=2)


@pytest.mark.hosts
def test_a_link_that_is_cut_for_good_ends_both_sides_which_name_each_other(network):
    hosts = network(2)
    timeout_s = 8
    commands, run_dir = start(hosts, OURS, Paced(hosts.folder, 1_000_000, timeout_s=timeout_s))
    training(run_dir, commands[0], beyond=2 * BATCH)
    hosts.hosts[1].cut()
    since = time.monotonic()
    for command in commands:
        assert command.wait(within_s=90) == 1, command.said
    assert time.monotonic() - since < timeout_s + 30
    for command, other in zip(commands, ("beta", "alpha"), strict=True):
        errors = [line for line in command.said.splitlines() if "lockstep: error: " in line]
        assert any(other in line for line in errors), command.said
    left = [host.processes for host in hosts.hosts]
    wait_for(
        lambda: not any(listed() for listed in left), lambda: f"left: {[listed() for listed in left]}", within_s=20
    )
