"""The command line of torchrun that started a rank: parsed, and corrected where its host name means loopback."""

import shlex

import pytest

from lockstep.distributed.network import torchrun
from lockstep.distributed.network.torchrun import loopback_error, means_this_host, parse
from lockstep.world import World

MAIN = (
    "python -m torch.distributed.run --nproc_per_node=2 --nnodes=2 --node_rank=0 --rdzv_id=123 --rdzv_backend=c10d "
    "--rdzv_endpoint=localhost:5555 -m lockstep.train --task=CartPole-v1 --rdzv_endpoint=of_the_script:1"
)
OTHER = MAIN.replace("node_rank=0", "node_rank=1").replace("localhost:5555", "10.0.0.1:5555")
WORLD = World(rank=0, size=4, local_rank=0, local_size=2, address="localhost", port=1, launcher="torchrun")


def parsed(line):
    command = parse(shlex.split(line))
    assert command is not None
    return command


def test_flags_after_the_script_are_not_torchruns():
    command = parsed(MAIN)
    assert command.endpoint == ("localhost", 5555)
    assert command.flags["--node-rank"] == "0"
    spaced = parsed("torchrun --nnodes 1:4 --rdzv-backend c10d --rdzv-endpoint h -m x --nnodes 9")
    assert (spaced.flags["--nnodes"], spaced.endpoint) == ("1:4", ("h", 29400))
    assert parsed("/venv/bin/python /venv/bin/torchrun --standalone --nproc-per-node 2 train.py").endpoint is None
    static = parsed("python -m torch.distributed.launch --nnodes=2 --node_rank=0 --master_addr=h train.py")
    assert (static.endpoint, static.flags["--master-addr"]) == (None, "h")
    assert parse(["python", "train.py"]) is None


def test_flags_that_torchrun_takes_from_variables_are_its_own(monkeypatch):
    """As operators of Kubernetes set them: its checks were skipped."""

    class Agent:
        def __init__(self, _):
            pass

        def cmdline(self):
            return shlex.split("torchrun --nproc-per-node=2 --node-rank=1 train.py")

    monkeypatch.setattr(torchrun, "torchrun_agent", lambda _: 1)
    monkeypatch.setattr(torchrun.psutil, "Process", Agent)
    variables = {"PET_NNODES": "1:2", "PET_NODE_RANK": "0", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "h:1"}
    command = torchrun.torchrun_command(variables)
    assert command is not None and command.endpoint == ("h", 1)
    assert (command.flags["--nnodes"], command.flags["--node-rank"]) == ("1:2", "1")
    assert command.with_flags({"--local-addr": "a"}).startswith("torchrun --local-addr=a --nproc-per-node=2")


def test_with_flags_keeps_everything_else_as_typed():
    changed = parsed(MAIN).with_flags({"--local-addr": "10.0.0.1", "--node-rank": "1"})
    assert changed == MAIN.replace("--nproc", "--local-addr=10.0.0.1 --nproc").replace("node_rank=0", "node_rank=1")
    spaced = parsed("torchrun --node-rank 0 --local_addr 127.0.0.1 -m x --node-rank 7 'a b'")
    assert spaced.with_flags({"--local-addr": "10.0.0.1", "--node-rank": "1"}) == (
        "torchrun --node-rank 1 --local_addr 10.0.0.1 -m x --node-rank 7 'a b'"
    )


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "127.0.1.1", "::1", "localhost.localdomain"])
def test_loopback_names_mean_this_host(name):
    assert means_this_host(name)


@pytest.mark.parametrize("name", ["alpha", "10.0.0.1", "localhoster", "fd00::1"])
def test_other_names_mean_one_host(name):
    assert not means_this_host(name)


def corrected_commands(monkeypatch, line, *, local, own, other=None):
    """The commands that a node prints, by node."""
    monkeypatch.setattr(torchrun, "torchrun_command", lambda: parsed(line))
    monkeypatch.setattr(torchrun, "resolve", lambda host: ["127.0.0.1" if host == "localhost" else host])
    monkeypatch.setattr(torchrun, "is_local", lambda address: address in local)
    monkeypatch.setattr(torchrun, "reachable_addresses", lambda: [own])
    monkeypatch.setattr(torchrun, "towards", lambda address, port: own)
    message = str(loopback_error(WORLD, other))
    assert "MASTER_ADDR=localhost is loopback" in message.partition("\n\n")[0]
    lines = message.partition("\n\n")[2].splitlines()
    return {line.split(":")[0].strip(): line.partition(": ")[2] for line in lines if line.startswith("  node ")}


def corrected(line, address):
    return line.replace("run --nproc", f"run --local-addr={address} --nproc")


def test_the_other_node_prints_both_commands(monkeypatch):
    commands = corrected_commands(monkeypatch, OTHER, local=["10.0.0.2"], own="10.0.0.2")
    assert commands == {"node 0": corrected(MAIN, "10.0.0.1"), "node 1": corrected(OTHER, "10.0.0.2")}


def test_the_main_node_prints_both_commands_once_the_other_has_reported(monkeypatch):
    reported = corrected_commands(
        monkeypatch, MAIN, local=["127.0.0.1", "10.0.0.1"], own="10.0.0.1", other=("1", "10.0.0.2")
    )
    assert reported == {"node 0": corrected(MAIN, "10.0.0.1"), "node 1": corrected(OTHER, "10.0.0.2")}
    alone = corrected_commands(monkeypatch, MAIN, local=["127.0.0.1", "10.0.0.1"], own="10.0.0.1")
    assert alone == {"node 0": corrected(MAIN, "10.0.0.1"), "node 1": corrected(OTHER, "ADDRESS")}


def test_without_torchrun_the_error_names_the_variable(monkeypatch):
    monkeypatch.setattr(torchrun, "torchrun_command", lambda: None)
    monkeypatch.setattr(torchrun, "reachable_addresses", lambda: ["10.0.0.1"])
    message = str(loopback_error(WORLD))
    assert "MASTER_ADDR=localhost" in message
    assert "10.0.0.1" in message
    assert "\n" not in message
