"""Ranks on a Ray cluster of two hosts, made of network namespaces: a raylet is killed, and a pod ends."""

import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml
from drivers import LOCKSTEP, WITHIN_S, summary
from small_runs import BATCH, Paced, ended_well, same_bits, steps, training

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]
HEAD = "10.77.0.1:6379"
# Ray finds the token of its user by itself only on the head.
VARIABLES = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 2, "RAY_USAGE_STATS_ENABLED": "0"}
DRAINED_S = 30.0
KILL_RAYLET = """
for process in /proc/[0-9]*; do
  if [ "$(cat $process/comm)" = raylet ]; then kill -KILL ${process#/proc/}; fi
done
"""


@pytest.fixture
def start_ray():
    """Start the Ray node of a host, as the first process of a pod does; alpha is the head."""
    with tempfile.TemporaryDirectory() as folder:  # names of sockets have at most 107 characters

        def start(host):
            where = ["--address", HEAD]
            if host.name == "alpha":
                where = ["--head", "--port", "6379", "--include-dashboard", "false", "--temp-dir", folder]
            words = ["--node-ip-address", host.address, "--num-cpus", "1", "--object-store-memory", "80000000"]
            node = host.start(["ray", "start", "--block", *where, *words], VARIABLES)
            node.tells("Ray runtime started")
            return node

        yield start


def start_driver(host, *words):
    flags = ["--on", "ray", "--address", HEAD, "--nnodes", "2", "--nproc-per-node", "1", "--run-dir", "run"]
    return host.start(["lockstep", "train", *flags, *words], VARIABLES)


def test_killed_raylet_of_a_host_is_replaced_and_the_bits_are_the_same(network, start_ray):
    hosts = network(2)
    alpha, beta = hosts.hosts
    nodes = [start_ray(host) for host in hosts.hosts]
    paced = Paced(hosts.shared, updates=60)
    driver = start_driver(alpha, "--max-restarts", "1", *paced.arguments)
    training(hosts.shared / "run", driver, beyond=5 * BATCH)
    beta.run(["sh", "-c", KILL_RAYLET])
    nodes[1].wait()
    driver.tells("restart 1 of 1 from step ")
    start_ray(beta)
    paced.let_go()
    ended_well(driver)
    assert "1 on beta (10.77.0.2)" in driver.said.rpartition("Ray placed 2 ranks")[2]
    assert summary(hosts.shared / "run")["restarts"] == 1
    same_bits(paced.alone(), hosts.shared / "run", ranks=2, hosts=2)


def test_pod_that_ends_leaves_a_checkpoint(network, start_ray):
    """The hook of a RayJob's pods runs on the host of a rank, before Kubernetes ends the pod."""
    hosts = network(2)
    alpha, beta = hosts.hosts
    nodes = [start_ray(host) for host in hosts.hosts]
    paced = Paced(hosts.shared, updates=400, checkpoint_every="null")
    driver = start_driver(alpha, *paced.arguments)
    training(hosts.shared / "run", driver)
    hook = beta.start(hook_of_rayjob(), VARIABLES | {"RAY_ADDRESS": HEAD})
    assert driver.wait() == 143, driver.said
    assert "Ray drains the node beta" in driver.said
    before = steps(hosts.shared / "run")
    assert (hosts.shared / f"run/checkpoints/step_{before}").is_dir()
    assert hook.wait(DRAINED_S) == 0, hook.said
    nodes[1].signal(signal.SIGTERM)  # from Kubernetes, after the hook
    nodes[1].wait(DRAINED_S)


def hook_of_rayjob() -> list[str]:
    """The command that the manifest has every pod run before it ends."""
    words = ["submit", "cartpole", "--on", "kubernetes", "--kind", "rayjob", "--image", "none", "--claim", "none"]
    done = subprocess.run(
        [LOCKSTEP, *words, "--dry-run"], capture_output=True, text=True, timeout=WITHIN_S, check=True, cwd=Path.home()
    )
    (group,) = yaml.safe_load(done.stdout)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    return container["lifecycle"]["preStop"]["exec"]["command"]
