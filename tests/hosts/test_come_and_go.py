"""Hosts that come and go: the others continue from the last checkpoint, and no bit changes."""

import json
from pathlib import Path

import pytest
from network import Command, Network, wait_for
from small_runs import BATCH, Paced, ended_well, same_bits, steps, training

OURS = "lockstep train --nnodes 1:4 --nproc-per-node 1 --rdzv-endpoint alpha:5555 --max-restarts 5 --run-dir run"
TORCHRUN = (
    "env TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 python -m torch.distributed.run --nproc_per_node=1 --nnodes=1:4 "
    "--max-restarts=5 --rdzv_id=123 --rdzv_backend=c10d --rdzv_endpoint=alpha:5555 -m lockstep.train --run-dir run"
)


def world_size(run_dir: Path) -> int:
    """Of the latest start that came as far as training."""
    try:
        return json.loads((run_dir / "preflight.json").read_text())["world_size"]
    except (FileNotFoundError, json.JSONDecodeError):
        return 0


def goes_on(network: Network, ranks: int, command: Command) -> None:
    """Wait until a world of so many ranks trains, and has taken steps."""
    run_dir = network.shared / "run"
    wait_for(
        lambda: world_size(run_dir) == ranks or not command.running,
        lambda: f"world size {world_size(run_dir)} is not {ranks}:\n" + "\n---\n".join(c.said for c in network.started),
    )
    assert command.running, command.said
    training(run_dir, command, beyond=steps(run_dir) + 2 * BATCH)


@pytest.mark.hosts
@pytest.mark.parametrize("command", [OURS, TORCHRUN], ids=["ours", "torchrun"])
def test_a_host_vanishes_and_returns_and_the_bits_are_those_of_one_host(network, command):
    hosts = network(4)
    paced = Paced(hosts.folder, 400, timeout_s=5, checkpoint_every=2 * BATCH)
    commands = [host.start(command.split() + paced.arguments) for host in hosts.hosts]
    goes_on(hosts, 4, commands[0])
    hosts.hosts[3].vanish()
    goes_on(hosts, 3, commands[0])
    hosts.hosts[3].up()
    commands[3] = hosts.hosts[3].start(command.split() + paced.arguments)
    goes_on(hosts, 4, commands[0])
    assert steps(hosts.shared / "run") < 400 * BATCH
    paced.let_go()
    ended_well(*commands)
    same_bits(paced.alone(), hosts.shared / "run", ranks=4, hosts=4)
