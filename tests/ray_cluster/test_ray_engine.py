"""Ranks as children of Ray actors: results, exit codes, signals, losses and restarts, on real clusters."""

import os
import signal
import time
from pathlib import Path

import pytest
from drivers import (
    Driver,
    fingerprint,
    kill_actor,
    ranks_of,
    summary,
    wait_for,
    wait_until_trained,
)
from small_runs import BATCH, Paced, small, steps

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]
SHORT = small(total_steps=8 * BATCH)
NOTICED_S = 5.0
AGAIN_S = 20.0
DRAINED_S = 20.0


def on_ray(cluster, *words: str) -> list[str]:
    return ["--on", "ray", "--address", cluster.address, *words]


@pytest.fixture(scope="module")
def by_own_launcher(tmp_path_factory) -> str:
    """The parameters of the short run with `--ranks 2`."""
    folder = tmp_path_factory.mktemp("local")
    Driver(folder, "train", "CartPole-v1", "--ranks", "2", "--run-dir", "run", *SHORT).succeed()
    return fingerprint(folder / "run")


@pytest.mark.parametrize("strategy", ["STRICT_PACK", "SPREAD"])
def test_parameters_are_those_of_our_own_launcher(strategy, cluster, by_own_launcher, tmp_path):
    words = on_ray(cluster, "--ranks", "2", "--strategy", strategy, "--run-dir", "run")
    output = Driver(tmp_path, "train", "CartPole-v1", *words, *SHORT).succeed()
    assert fingerprint(tmp_path / "run") == by_own_launcher
    assert "parameters equal on both ranks" in output  # rank 0's lines reach the driver's terminal
    assert "Ray placed 2 ranks: " + ("0-1 on" if strategy == "STRICT_PACK" else "0 on") in output
    assert (tmp_path / "run" / "logs" / "rank_1.log").exists()
    assert ranks_of(tmp_path / "run") == {}


def test_nodes_hold_several_ranks_each(cluster, by_own_launcher, tmp_path):
    words = on_ray(cluster, "--nnodes", "2", "--nproc-per-node", "2", "--run-dir", "run")
    output = Driver(tmp_path, "train", "CartPole-v1", *words, *SHORT).succeed()
    assert "Ray placed 4 ranks: 0-1 on" in output
    assert fingerprint(tmp_path / "run") == by_own_launcher


def test_exit_code_and_message_are_those_of_the_failing_rank(cluster, tmp_path):
    (tmp_path / "leaving.py").write_text(
        "import os, sys\n"
        f"sys.path.append({str(Path(__file__).parents[2] / 'examples')!r})\n"
        "from my_env import MyVectorEnv\n"
        "class Leaving(MyVectorEnv):\n"
        "    def step(self, action):\n"
        "        os.environ.get('RANK') == '1' and os._exit(7)\n"
        "        return super().step(action)\n"
    )
    driver = Driver(
        tmp_path, "train", "leaving.py:Leaving", *on_ray(cluster, "--ranks", "2", "--run-dir", "run"), *SHORT
    )
    assert driver.wait() == 7, driver.output
    assert "lockstep: rank 1 " in driver.output
    assert summary(tmp_path / "run")["status"] == "failed"
    assert ranks_of(tmp_path / "run") == {}


def test_killed_actor_ends_the_run_in_time(cluster, tmp_path):
    paced = Paced(tmp_path, updates=400)
    driver = Driver(tmp_path, "train", *on_ray(cluster, "--ranks", "2", "--run-dir", "run"), *paced.arguments)
    wait_until_trained(driver, tmp_path / "run")
    began = time.monotonic()
    kill_actor(tmp_path / "run", 1)
    wait_for(lambda: "rank 1 was lost" in driver.output, "the loss is reported", within_s=NOTICED_S)
    assert driver.wait() == 137, driver.output
    assert time.monotonic() - began < 2 * NOTICED_S
    assert ranks_of(tmp_path / "run") == {}


def test_killed_actor_is_replaced_and_the_bits_are_the_same(cluster, tmp_path):
    paced = Paced(tmp_path, updates=60)
    words = on_ray(cluster, "--ranks", "2", "--strategy", "SPREAD", "--max-restarts", "1", "--run-dir", "run")
    driver = Driver(tmp_path, "train", *words, *paced.arguments)
    wait_until_trained(driver, tmp_path / "run", beyond=5 * BATCH)
    began = time.monotonic()
    kill_actor(tmp_path / "run", 1)
    wait_for(lambda: "Ray actor has died" in driver.output, "the loss is reported", driver, NOTICED_S)
    before = steps(tmp_path / "run")
    wait_for(lambda: steps(tmp_path / "run") > before, "it trains again", driver)
    assert time.monotonic() - began < 3 * AGAIN_S  # AGAIN_S on an idle machine: docs/results/ray.md
    paced.let_go()
    driver.succeed()
    assert summary(tmp_path / "run")["restarts"] == 1
    assert fingerprint(tmp_path / "run") == fingerprint(paced.alone())


def test_lost_node_leaves_an_elastic_run_on_the_others(new_cluster, tmp_path):
    cluster = new_cluster(1, 1)
    paced = Paced(tmp_path, updates=60)
    driver = Driver(tmp_path, "train", *on_ray(cluster, "--ranks", "1:2", "--run-dir", "run"), *paced.arguments)
    wait_until_trained(driver, tmp_path / "run", beyond=5 * BATCH)
    assert "Ray placed 2 ranks" in driver.output
    (worker,) = cluster.worker_nodes
    cluster.remove_node(worker, allow_graceful=False)
    wait_for(lambda: "Ray placed 1 rank" in driver.output, "one rank is placed", driver)
    paced.let_go()
    driver.succeed()
    assert summary(tmp_path / "run")["restarts"] == 1
    assert fingerprint(tmp_path / "run") == fingerprint(paced.alone())


def test_drained_node_ends_the_run_with_a_checkpoint(new_cluster, joined_node, tmp_path):
    """What happens to a pod that is deleted: its `ray start` gets SIGTERM."""
    cluster = new_cluster(1)
    node = joined_node(cluster, 1)
    paced = Paced(tmp_path, updates=400, checkpoint_every="null")
    words = on_ray(cluster, "--ranks", "2", "--strategy", "STRICT_SPREAD", "--run-dir", "run")
    driver = Driver(tmp_path, "train", *words, *paced.arguments)
    wait_until_trained(driver, tmp_path / "run")
    node.terminate()
    began = time.monotonic()
    assert driver.wait() == 143, driver.output
    assert time.monotonic() - began < DRAINED_S
    assert "Ray drains the node" in driver.output
    assert summary(tmp_path / "run")["status"] == "interrupted"
    assert (tmp_path / "run" / "checkpoints" / f"step_{steps(tmp_path / 'run')}").is_dir()
    node.wait(DRAINED_S)  # Ray ends a node that drains as soon as it is idle
    assert ranks_of(tmp_path / "run") == {}


def test_drained_node_loses_no_step_of_a_run_that_restarts(new_cluster, joined_node, tmp_path):
    cluster = new_cluster(1)
    node = joined_node(cluster, 1)
    paced = Paced(tmp_path, updates=60, checkpoint_every="null")
    driver = Driver(tmp_path, "train", *on_ray(cluster, "--ranks", "1:2", "--run-dir", "run"), *paced.arguments)
    wait_until_trained(driver, tmp_path / "run", beyond=5 * BATCH)
    node.terminate()
    wait_for(lambda: "Ray placed 1 rank:" in driver.output, "one rank is placed", driver)
    saved = int(driver.output.rpartition("from step ")[2].split()[0])
    assert saved > 5 * BATCH, "the ranks wrote a checkpoint before they ended"
    paced.let_go()
    driver.succeed()
    assert summary(tmp_path / "run")["restarts"] == 1
    assert fingerprint(tmp_path / "run") == fingerprint(paced.alone())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_at_the_driver_writes_a_checkpoint(number, cluster, tmp_path):
    paced = Paced(tmp_path, updates=400, checkpoint_every="null")
    driver = Driver(tmp_path, "train", *on_ray(cluster, "--ranks", "2", "--run-dir", "run"), *paced.arguments)
    wait_until_trained(driver, tmp_path / "run")
    driver.process.send_signal(number)
    assert driver.wait() == 128 + number, driver.output
    assert summary(tmp_path / "run")["status"] == "interrupted"
    assert (tmp_path / "run" / "checkpoints" / "LATEST").exists()
    assert ranks_of(tmp_path / "run") == {}


def test_a_rank_that_fails_while_it_stops_is_no_clean_interruption(cluster, tmp_path):
    paced = Paced(tmp_path, updates=400, checkpoint_every="null")
    driver = Driver(tmp_path, "train", *on_ray(cluster, "--ranks", "2", "--run-dir", "run"), *paced.arguments)
    wait_until_trained(driver, tmp_path / "run")
    (tmp_path / "run" / "policy.safetensors").mkdir()  # which the file cannot replace
    driver.process.send_signal(signal.SIGTERM)
    assert driver.wait() == 1, driver.output
    assert "(after SIGTERM (signal 15))" in driver.output
    assert summary(tmp_path / "run")["status"] == "failed"


def test_nothing_is_left_when_the_driver_is_killed(cluster, tmp_path):
    import ray
    from ray.util import placement_group_table

    paced = Paced(tmp_path, updates=400)
    driver = Driver(tmp_path, "train", *on_ray(cluster, "--ranks", "2", "--run-dir", "run"), *paced.arguments)
    wait_until_trained(driver, tmp_path / "run")
    ranks = ranks_of(tmp_path / "run")
    assert sorted(ranks) == [0, 1]
    actors = [process.parent() for process in ranks.values()]
    os.kill(driver.process.pid, signal.SIGKILL)
    driver.process.wait()
    processes = [*ranks.values(), *actors]
    wait_for(lambda: not any(one is not None and one.is_running() for one in processes), "all processes end")
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        groups = lambda: [one["state"] for one in placement_group_table().values()]  # noqa: E731
        wait_for(lambda: set(groups()) <= {"REMOVED"}, "the placement group is removed")
        assert ray.available_resources()["CPU"] == 4.0
    finally:
        ray.shutdown()


def test_impossible_ranks_are_refused_with_the_resources(cluster, tmp_path):
    words = on_ray(cluster, "--ranks", "5", "--join-timeout", "2", "--run-dir", "run")
    driver = Driver(tmp_path, "train", "CartPole-v1", *words, *small(num_shards=5, num_envs=20))
    assert driver.wait() == 2, driver.output
    assert (
        "Ray could not place 5 ranks of CPU 1 (PACK) within the join timeout of 2 s; the cluster has CPU 4"
        in driver.output
    )


def test_driver_starts_a_cluster_where_none_runs(tmp_path, by_own_launcher):
    words = ["--on", "ray", "--address", "local", "--ranks", "2", "--run-dir", "run"]
    output = Driver(tmp_path, "train", "CartPole-v1", *words, *SHORT).succeed()
    assert "started a Ray cluster on this machine" in output
    assert fingerprint(tmp_path / "run") == by_own_launcher
