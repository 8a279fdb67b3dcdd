"""A cluster of two Ray nodes on this machine, for tests that need no other."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from drivers import wait_for
from network import network  # noqa: F401  # a fixture; `drivers` makes it importable

from lockstep.launch.rank_environment import free_port

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
collect_ignore_glob = [] if find_spec("ray") else ["test_ray_*.py"]

Clusters = Callable[..., Any]


@pytest.fixture(scope="session")
def new_cluster() -> Iterator[Clusters]:
    """Start a cluster: `new_cluster(2, 1)` has nodes with 2 and 1 CPUs, whatever the machine has."""
    from ray.cluster_utils import Cluster

    with contextlib.ExitStack() as stack:

        def attempt(cpus: tuple[int, ...], dashboard: bool) -> Any:
            cluster = Cluster()
            stack.callback(cluster.shutdown)
            for index, count in enumerate(cpus):
                cluster.add_node(
                    num_cpus=count,
                    include_dashboard=dashboard and index == 0,
                    dashboard_port=0,
                    dashboard_agent_listen_port=free_port(),  # one of another cluster here would accept no jobs
                    object_store_memory=80_000_000,
                )
            cluster.wait_for_nodes()
            return cluster

        def start(*cpus: int, dashboard: bool = False) -> Any:
            try:
                return attempt(cpus, dashboard)
            except Exception as error:  # Ray's own type; its bound of 30 s is too short for a busy machine
                if "timed out during startup" not in str(error):
                    raise
                return attempt(cpus, dashboard)

        yield start


@pytest.fixture
def joined_node() -> Iterator[Callable[[Any, int], subprocess.Popen[bytes]]]:
    """Start a node as a pod does: `joined_node(cluster, cpus)` is the process of `ray start --block`."""
    started: list[subprocess.Popen[bytes]] = []
    ray = Path(sys.executable).with_name("ray")

    def start(cluster: Any, cpus: int) -> subprocess.Popen[bytes]:
        def alive() -> int:
            return sum(node["Alive"] for node in cluster.global_state.node_table())

        before = alive()
        words = ["start", "--block", "--address", cluster.address, "--num-cpus", str(cpus), "--disable-usage-stats"]
        words += ["--object-store-memory", "80000000"]
        started.append(subprocess.Popen([ray, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        wait_for(lambda: alive() > before, "the node joins")
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.wait(60)


@pytest.fixture(scope="session")
def cluster(new_cluster: Clusters) -> Any:
    """Two nodes with 2 CPUs each, which no test removes."""
    return new_cluster(2, 2)
