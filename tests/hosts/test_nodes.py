"""Our own launcher on several hosts: same commands, same bits, however the nodes meet."""

import signal
from itertools import product

import pytest
from network import wait_for
from small_runs import BATCH, Paced, ended_well, only_run, same_bits, small, summary, training

TRAIN = "lockstep train cartpole --nnodes {count} --nproc-per-node {ranks}"
OWN_NAMES = ("address", "127.0.1.1", "localhost")
# What every rank does with somebody else's training: a sum over all ranks with torch alone.
SCRIPT = """
import os, socket, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
number = torch.tensor([10.0 ** dist.get_rank()])
dist.all_reduce(number)
print(f"rank {os.environ['RANK']} on {socket.gethostname()}: {number.item():.0f} {sys.argv[1:]}", flush=True)
dist.destroy_process_group()
"""


def train(host, ranks=2, count=2, flags="", environment=None, **changes):
    words = TRAIN.format(count=count, ranks=ranks).split() + flags.split() + small(**changes)
    return host.start(words, environment)


@pytest.mark.parametrize(
    ("own_name", "endpoint"),
    [
        pytest.param(*case, marks=() if case == ("127.0.1.1", "localhost") else pytest.mark.hosts)
        for case in product(OWN_NAMES, ("alpha", "localhost"))
    ],
)
def test_two_hosts_meet_at_an_endpoint_whatever_their_names_resolve_to(network, one_host, endpoint, own_name):
    hosts = network(2, own_name=own_name)
    alpha, beta = hosts.hosts
    ended_well(
        train(alpha, ranks=1, flags=f"--node-rank 0 --rdzv-endpoint {endpoint}:5555"),
        train(beta, ranks=1, flags="--node-rank 1 --rdzv-endpoint alpha:5555"),
    )
    same_bits(one_host("cartpole"), only_run(hosts), ranks=2, hosts=2)


@pytest.mark.hosts
@pytest.mark.parametrize("before", ["empty", "nothing", "stale"])
def test_two_hosts_meet_through_a_file(network, one_host, before):
    hosts = network(2)
    alpha, beta = hosts.hosts
    if before == "empty":
        (hosts.shared / "run7").touch()
    if before == "stale":  # what a main node leaves that was killed while it waited
        killed = train(alpha, flags="--node-rank 0 --init-file run7")
        wait_for(lambda: (hosts.shared / "run7").exists() and (hosts.shared / "run7").read_bytes() != b"")
        alpha.vanish()
        alpha.up()
        assert not killed.running
        assert (hosts.shared / "run7").exists()
    other = train(beta, flags="--node-rank 1 --init-file run7")
    ended_well(train(alpha, flags="--node-rank 0 --init-file run7"), other)
    (found,) = (run for run in (hosts.shared / "runs").iterdir() if (run / "summary.json").exists())
    same_bits(one_host("cartpole"), found, ranks=4, hosts=2)
    assert not (hosts.shared / "run7").exists(), "the file of a run that is over is left"


@pytest.mark.hosts
def test_four_hosts_whose_ranks_the_rendezvous_assigns(network, one_host):
    hosts = network(4)
    flags = "--rdzv-endpoint alpha:5555"
    ended_well(*[train(host, ranks=1, count=4, flags=flags) for host in reversed(hosts.hosts)])
    run_dir = only_run(hosts)
    same_bits(one_host("cartpole"), run_dir, ranks=4, hosts=4)
    assert summary(run_dir)["ranks"][0]["host"] == "alpha", "rank 0 lives where the endpoint is"


@pytest.mark.hosts
def test_hosts_may_have_different_numbers_of_ranks(network, one_host):
    hosts = network(2)
    alpha, beta = hosts.hosts
    flags = "--rdzv-endpoint alpha:5555 --node-rank "
    ended_well(train(alpha, ranks=1, flags=f"{flags}0"), train(beta, ranks=2, flags=f"{flags}1"))
    same_bits(one_host("cartpole"), only_run(hosts), ranks=3, hosts=2)


@pytest.mark.hosts
@pytest.mark.parametrize("own_name", OWN_NAMES)
def test_any_script_is_launched_with_torchruns_flags(network, own_name):
    hosts = network(2, own_name=own_name)
    (hosts.shared / "script.py").write_text(SCRIPT)
    words = "lockstep launch --nproc_per_node=2 --nnodes=2 --node_rank={} --rdzv_id=123 --rdzv_backend=c10d "
    words += "--rdzv_endpoint={}:5555 script.py --its own"
    commands = [
        hosts.hosts[0].start(words.format(0, "localhost")),
        hosts.hosts[1].start(words.format(1, hosts.hosts[0].address)),
    ]
    ended_well(*commands)
    said = "".join(command.said for command in commands)
    for rank, host in enumerate(("alpha", "alpha", "beta", "beta")):
        assert f"rank {rank} on {host}: 1111 ['--its', 'own']" in said


@pytest.mark.hosts
def test_a_signal_to_one_node_ends_all_at_one_step_and_one_host_goes_on(network):
    hosts = network(2)
    paced = Paced(hosts.folder, 40)
    flags = "lockstep train --nnodes 2 --nproc-per-node 2 --rdzv-endpoint alpha:5555 --run-dir run"
    commands = [host.start(flags.split() + paced.arguments) for host in hosts.hosts]
    training(hosts.shared / "run", commands[0], beyond=2 * BATCH)
    commands[1].signal(signal.SIGTERM)
    assert [command.wait() for command in commands] == [143, 143], "\n".join(command.said for command in commands)
    assert summary(hosts.shared / "run")["status"] == "interrupted"
    paced.let_go()
    hosts.hosts[0].run("lockstep train --resume run --ranks 1")
    same_bits(paced.alone(), hosts.shared / "run", ranks=1, hosts=1)
