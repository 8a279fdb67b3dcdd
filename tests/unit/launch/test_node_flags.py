"""Flags to machines: torchrun's spelling, contradictions, and what only the launcher may see."""

import argparse

import pytest

from lockstep.errors import ConfigError
from lockstep.launch.node_flags import add_node_arguments, asks_for_nodes, max_restarts_of, nodes_of, without_node_flags


def parsed(*words):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_node_arguments(parser)
    return parser.parse_args(words)


def nodes(*words, **environment):
    return nodes_of(parsed(*words), environment)


def test_the_published_flags():
    found = nodes("--nproc_per_node=2", "--nnodes=2", "--node_rank=1", "--rdzv_id=123", "--rdzv_endpoint=main:5555")
    assert (found.minimum, found.maximum, found.node_rank, found.nproc) == (2, 2, 1, 2)
    assert (found.host, found.port, found.run_id, found.elastic) == ("main", 5555, "123", False)


def test_hyphens_mean_the_same():
    assert nodes("--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", "a:1") == nodes(
        "--nnodes=2", "--node_rank=0", "--rdzv_endpoint=a:1"
    )


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("main", "main", 29400), ("main:81", "main", 81), ("[fd00::1]:5555", "fd00::1", 5555), ("[::1]", "::1", 29400)],
)
def test_endpoints(text, host, port):
    found = nodes("--nnodes=2", f"--rdzv-endpoint={text}")
    assert (found.host, found.port) == (host, port)


def test_master_address_and_port_are_an_endpoint():
    found = nodes("--nnodes=2", "--master_addr=main", "--rdzv_backend=static")
    assert (found.host, found.port) == ("main", 29500)
    assert nodes("--nnodes=2", "--master_addr=main", "--master_port=7").port == 7


def test_nodes_that_come_and_go():
    found = nodes("--nnodes=1:4", "--rdzv-endpoint=main:5555")
    assert found.elastic and (found.minimum, found.maximum) == (1, 4)
    assert max_restarts_of(parsed("--nnodes=1:4"), found) == 3
    assert max_restarts_of(parsed("--nnodes=1:4", "--max-restarts=7"), found) == 7
    assert max_restarts_of(parsed("--nnodes=2"), nodes("--nnodes=2", "--init-file=f")) == 0


def test_a_task_of_slurm_per_node_knows_which_it_is():
    slurm = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_NODEID": "3", "SLURM_LOCALID": "0"}
    assert nodes("--nnodes=4", "--rdzv-endpoint=main:5555", **slurm).node_rank == 3
    assert nodes("--nnodes=4", "--rdzv-endpoint=main:5555", "--node-rank=1", **slurm).node_rank == 1
    assert nodes("--nnodes=1:4", "--rdzv-endpoint=main:5555", **slurm).node_rank is None


def test_the_token_comes_from_a_file_or_the_environment(tmp_path):
    (tmp_path / "token").write_text("secret\n")
    assert nodes("--nnodes=2", "--init-file=f", f"--token-file={tmp_path / 'token'}").token == "secret"
    assert nodes("--nnodes=2", "--init-file=f", LOCKSTEP_TOKEN="other").token == "other"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nnodes=2"], "--rdzv-endpoint HOST:PORT"),
        (["--nnodes=0"], "--nnodes 0"),
        (["--nnodes=4:2", "--init-file=f"], "maximum is less than the minimum"),
        (["--nnodes=two"], "--nnodes two"),
        (["--nnodes=2", "--node-rank=-1", "--init-file=f"], "--node-rank -1"),
        (["--nnodes=2", "--standalone", "--init-file=f"], "--standalone"),
        (["--nnodes=2", "--init-file=f", "--rdzv-endpoint=a:1"], "give one"),
        (["--nnodes=2", "--master-addr=a", "--rdzv-endpoint=a:1"], "give one"),
        (["--nnodes=2", "--rdzv-endpoint=:5555"], "no host"),
        (["--nnodes=2", "--rdzv-endpoint=a:port"], "port"),
        (["--nnodes=2", "--rdzv-endpoint=a:70000"], "70000"),
        (["--nnodes=2", "--rdzv-endpoint=fd00::1"], "brackets"),
        (["--nnodes=2", "--rdzv-endpoint=a:1", "--rdzv-backend=etcd"], "etcd"),
        (["--nnodes=2", "--rdzv-endpoint=a:1", "--nproc-per-node=0"], "--nproc-per-node 0"),
        (["--nnodes=2", "--rdzv-endpoint=a:1", "--join-timeout=soon"], "--join-timeout soon"),
        (["--nnodes=2", "--rdzv-endpoint=a:1", "--token-file=/nowhere"], "/nowhere"),
        (["--node-rank=1"], "--node-rank 1 does not exist on one machine"),
        (["--nnodes=1", "--node-rank=x"], "--node-rank x"),
        (["--master-port=none"], "--master-port none"),
    ],
)
def test_contradictions_are_refused(words, said):
    with pytest.raises(ConfigError, match=said):
        nodes(*words)


def test_port_zero_is_any_free_one_on_one_machine():
    torchruns = ("--nnodes=1", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
    assert nodes(*torchruns) == nodes("--nnodes=1", "--nproc-per-node=2")
    with pytest.raises(ConfigError, match="--rdzv-endpoint a:0: port 0 must be a port, at least 1"):
        nodes("--nnodes=2", "--rdzv-endpoint=a:0")


@pytest.mark.parametrize("flags", [["--nnodes=2", "--rdzv-endpoint=a:1"], ["--nnodes=1"], ["--standalone"]])
def test_ranks_start_no_ranks(flags):
    typed = flags[0].partition("=")[0]
    with pytest.raises(ConfigError, match=f"{typed}.* starts ranks, .* rank 1 of 2 already; leave {typed} out"):
        nodes(*flags, RANK="1", WORLD_SIZE="2")
    assert nodes(RANK="1", WORLD_SIZE="2").maximum == 1


@pytest.mark.parametrize("flag", ["--node-rank=1", "--rdzv-endpoint=a:1", "--rdzv-id=7", "--join-timeout=3"])
def test_flags_of_several_machines_need_nnodes(flag):
    with pytest.raises(ConfigError, match="add --nnodes"):
        asks_for_nodes(parsed(flag))
    assert asks_for_nodes(parsed("--nnodes=2", flag))


def test_ranks_see_all_but_the_flags_of_nodes():
    typed = "cartpole --nnodes 2 --set num_envs=16 --node-rank=1 --rdzv-endpoint a:1 --seed 3 --max-restarts 2"
    typed += " --grace-s 60 --headless"
    assert without_node_flags(typed.split()) == ["cartpole", "--set", "num_envs=16", "--seed", "3", "--headless"]
