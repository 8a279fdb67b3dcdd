"""torchrun on several hosts, with the commands that robot-learning suites document."""

import re
import shlex

import pytest
from network import Network
from small_runs import ended_well, only_run, same_bits, small

# Word for word as robot-learning suites document them; the settings that make it small come behind.
MAIN = (
    "python -m torch.distributed.run --nproc_per_node=2 --nnodes=2 --node_rank=0 --rdzv_id=123 --rdzv_backend=c10d "
    "--rdzv_endpoint=localhost:5555 -m lockstep.train --task=CartPole-v1 --headless --distributed"
)
OTHER = (
    "python -m torch.distributed.run --nproc_per_node=2 --nnodes=2 --node_rank=1 --rdzv_id=123 --rdzv_backend=c10d "
    "--rdzv_endpoint=IP_OF_MAIN:5555 -m lockstep.train --task=CartPole-v1 --headless --distributed"
)


def pair(network: Network) -> tuple[list[str], list[str]]:
    """What is typed on either host."""
    return MAIN.split() + small(), OTHER.replace("IP_OF_MAIN", network.hosts[0].address).split() + small()


@pytest.mark.hosts
@pytest.mark.parametrize("own_name", ["address", "127.0.1.1"])
def test_the_published_pair_trains_with_no_further_flag_and_comes_to_the_bits_of_one_host(network, one_host, own_name):
    hosts = network(2, own_name=own_name)
    ended_well(*[host.start(words) for host, words in zip(hosts.hosts, pair(hosts), strict=True)])
    same_bits(one_host("--task=CartPole-v1"), only_run(hosts), ranks=4, hosts=2)


@pytest.mark.hosts
def test_where_host_names_mean_localhost_every_node_is_told_the_command_that_works(network, one_host):
    hosts = network(2, own_name="localhost")
    hosts.hosts[1].run("true")  # torchrun takes nodes with one name and one process id for one node, and waits for ever
    commands = [host.start(words) for host, words in zip(hosts.hosts, pair(hosts), strict=True)]
    cured = []
    for rank, command in enumerate(commands):
        assert command.wait() != 0, command.said
        printed = {line.strip() for line in command.said.splitlines() if f"--node_rank={rank} " in line}
        cured += [re.sub(r"^.*?(?=\S*python\S* -m torch)", "", line) for line in printed if "--local" in line]
    assert len(cured) == 2, "\n---\n".join(f"{command}\n{command.said}" for command in commands)
    assert not (hosts.shared / "runs").exists()
    ended_well(*[host.start(shlex.split(line)) for host, line in zip(hosts.hosts, cured, strict=True)])
    same_bits(one_host("--task=CartPole-v1"), only_run(hosts), ranks=4, hosts=2)


@pytest.mark.hosts
def test_static_rendezvous_and_the_older_launcher(network, one_host):
    hosts = network(2)
    for module in ("torch.distributed.run", "torch.distributed.launch"):
        words = f"python -m {module} --nproc_per_node=2 --nnodes=2 --node_rank={{}} --master_addr=alpha "
        words += f"--master_port=5555 -m lockstep.train --task=CartPole-v1 --run-dir {module}"
        ended_well(*[host.start(words.format(rank).split() + small()) for rank, host in enumerate(hosts.hosts)])
        same_bits(one_host("--task=CartPole-v1"), hosts.shared / module, ranks=4, hosts=2)
