"""JAX ranks on several hosts: met by the launcher for JAX, they come to the bits of one process."""

import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from small_runs import BATCH, Paced, alone, ended_well, only_run, refused, same_bits, small, summary, training

pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="needs JAX")

# As docs/commands.md shows, with the flags of the launcher that users know.
LAUNCH = "python -m lockstep.launch.jax --nproc_per_node=2 --nnodes=2 --node_rank={} --coordinator_address={}:5555"
TRAIN = "-m lockstep.train --headless --distributed --ml_framework jax"
CARTPOLE = {"ml_framework": "jax", "total_steps": 12 * BATCH}
PICTURES = {
    "ml_framework": "jax",
    "algo": "dqn",
    "num_envs": 16,
    "total_steps": 480,
    "log_every": 160,
    "checkpoint_every": 160,
    "network__features": 16,
    "network__encoder": "nature",
    "algorithm__num_steps": 2,
    "algorithm__learning_starts": 96,
    "algorithm__updates_per_step": 0.25,
    "algorithm__batch_size": 32,
    "algorithm__capacity": 256,
    "algorithm__n_step": 3,
    "algorithm__prioritized": "true",
    "algorithm__target_update_every": 25,
}
DOT = f"{Path(__file__).parents[1] / 'ranks' / 'image_envs.py'}:Dot"
# A sum over all ranks with JAX alone: somebody else's script, which finds in the variables all that it needs.
SCRIPT = """
import os, socket, sys
import jax

jax.config.update("jax_platforms", "cpu")
where = os.environ["JAX_COORDINATOR_ADDR"] + ":" + os.environ["JAX_COORDINATOR_PORT"]
rank, size = int(os.environ["JAX_RANK"]), int(os.environ["JAX_WORLD_SIZE"])
jax.distributed.initialize(where, size, rank)
from jax.experimental.multihost_utils import process_allgather

total = float(process_allgather(jax.numpy.ones(1) * 10**rank).sum())
print(f"rank {rank} on {socket.gethostname()} at {where}: {total:.0f}", flush=True)
if sys.argv[1:] == ["fail"] and rank == 3:
    sys.exit(7)
if sys.argv[1:]:
    process_allgather(jax.numpy.ones(1))
"""


def pair(hosts, *words, at=None, **changes):
    """The training on two hosts; `words` say what. Settings that only PPO has are left out of another algorithm's."""
    alpha, beta = hosts.hosts
    settings = small(**changes)
    if changes.get("algo"):
        settings = [w for pair in without_ppo(settings) for w in pair]
    return [
        host.start([*LAUNCH.format(rank, at or alpha.address).split(), *TRAIN.split(), *words, *settings])
        for rank, host in enumerate((alpha, beta))
    ]


def without_ppo(settings):
    """Pairs of `--set` and a setting, without those of PPO."""
    pairs = list(zip(settings[::2], settings[1::2], strict=True))
    return [pair for pair in pairs if not pair[1].startswith(("algorithm.num_epochs", "algorithm.num_minibatches"))]


@pytest.mark.hosts
@pytest.mark.parametrize("own_name", ["address", "127.0.1.1"])
def test_ppo_on_two_hosts_comes_to_the_bits_of_one_process(network, one_host, own_name):
    hosts = network(2, own_name=own_name)
    ended_well(*pair(hosts, "--task=CartPole-v1", **CARTPOLE))
    same_bits(one_host("--task=CartPole-v1", **CARTPOLE), only_run(hosts), ranks=4, hosts=2)


@pytest.mark.hosts
def test_dqn_with_pictures_on_two_hosts_comes_to_the_bits_of_one_process(network, tmp_path):
    hosts = network(2)
    ended_well(*pair(hosts, DOT, **PICTURES))
    words = [w for pair in without_ppo(small(**PICTURES)) for w in pair]
    one = hosts.hosts[0]
    one.run(["lockstep", "train", DOT, "--run-dir", str(tmp_path / "one"), *words])
    same_bits(tmp_path / "one", only_run(hosts), ranks=4, hosts=2)


@pytest.mark.hosts
def test_our_own_flags_start_jax_on_two_hosts(network, one_host):
    hosts = network(2)
    words = "lockstep train cartpole --nnodes 2 --nproc-per-node 2 --rdzv-endpoint alpha:5555 --run-dir run"
    ended_well(*[host.start([*words.split(), *small(**CARTPOLE)]) for host in hosts.hosts])
    same_bits(one_host("cartpole", **CARTPOLE), hosts.shared / "run", ranks=4, hosts=2)


@pytest.mark.hosts
def test_jax_itself_meets_at_the_address_that_is_typed(network):
    hosts = network(2)
    alpha, beta = hosts.hosts
    (hosts.shared / "script.py").write_text(SCRIPT)
    commands = [
        host.start([*LAUNCH.format(rank, alpha.address).split(), "script.py"]) for rank, host in ((0, alpha), (1, beta))
    ]
    ended_well(*commands)
    said = "".join(command.said for command in commands)
    for rank, host in enumerate(("alpha", "alpha", "beta", "beta")):
        assert f"rank {rank} on {host} at {alpha.address}:5555: 1111" in said


@pytest.mark.hosts
def test_the_code_of_a_rank_that_fails_is_that_of_both_launchers(network):
    hosts = network(2)
    alpha, beta = hosts.hosts
    (hosts.shared / "script.py").write_text(SCRIPT)
    commands = [
        host.start([*LAUNCH.format(rank, alpha.address).split(), "script.py", "fail"])
        for rank, host in ((0, alpha), (1, beta))
    ]
    assert [command.wait() for command in commands] == [7, 7], "\n".join(command.said for command in commands)
    assert all("rank 3 exited with code 7" in command.said for command in commands)
    assert [host.processes() for host in hosts.hosts] == [[], []]


@pytest.mark.hosts
def test_a_host_that_vanishes_is_named_and_ends_the_others_in_time(network):
    hosts = network(2)
    paced = Paced(hosts.folder, 400, ml_framework="jax", timeout_s=10)
    words = "lockstep train --nnodes 2 --nproc-per-node 2 --rdzv-endpoint alpha:5555 --run-dir run"
    commands = [host.start(words.split() + paced.arguments) for host in hosts.hosts]
    training(hosts.shared / "run", commands[0])
    hosts.hosts[1].vanish()
    since = time.monotonic()
    assert commands[0].wait() == 1, commands[0].said
    assert time.monotonic() - since < 60
    assert "beta" in summary(hosts.shared / "run")["error"]
    assert hosts.hosts[0].processes() == []


def test_mistakes_are_told_on_both_hosts(network):
    hosts = network(2)
    commands = [host.start([*LAUNCH.format(0, "alpha").split(), *TRAIN.split()]) for host in hosts.hosts]
    refused(*commands, each=["--node-rank 0 is .*", "--coordinator_address|--node-rank 0 is"])


@pytest.mark.hosts
def test_one_process_is_what_two_hosts_are_compared_with(tmp_path):
    """The comparison itself can fail: another seed comes to other bits."""
    one, other = (alone(tmp_path / f"{seed}", "cartpole", **CARTPOLE, seed=seed) for seed in (0, 1))
    assert summary(one)["params_fingerprint"] != summary(other)["params_fingerprint"]
