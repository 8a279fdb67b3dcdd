"""JAX on a GPU; skipped without one."""

import json
import subprocess
import sys
from pathlib import Path

import jax_comm_calls as called
import numpy as np
import pytest

from lockstep import World, spawn
from lockstep.jax.comm import Comm
from lockstep.launch.gpus import visible_gpus
from lockstep.launch.rank_environment import free_port

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not visible_gpus("jax"), reason="JAX finds no GPU")]
REPLAY = ("num_envs=8", "total_steps=4096", "learning_starts=512", "capacity=2048", "prioritized=false")
RUNS = {
    "environments on the device": ["cartpole_jax", "--set", "total_steps=40960"],
    "environments on the host": ["cartpole", "--ml-framework", "jax", "--set", "total_steps=8192"],
}


TWO_GPUS = pytest.mark.skipif(visible_gpus("jax") < 2, reason="fewer than 2 GPUs")


def train(folder, words):
    settings = ("device=cuda", "num_shards=2", "evaluate_every=null", "evaluate_episodes=2", "stop_when_solved=false")
    command = [sys.executable, "-m", "lockstep.train", *words, "--run-dir", str(folder)]
    command += [word for one in settings for word in ("--set", one)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize("name", RUNS)
def test_one_gpu_trains_and_repeats_itself(tmp_path, name):
    first, second = (train(tmp_path / folder, RUNS[name]) for folder in ("a", "b"))
    assert first["devices"][0].startswith("cuda:0")
    assert first["params_fingerprint"] == second["params_fingerprint"]
    assert first["ranks"][0]["peak_device_memory"] > 0


PICTURES = str(Path(__file__).with_name("image_envs.py")) + ":Dot"


@pytest.mark.parametrize(
    ("task", "settings"),
    [("CartPole-v1", ()), ("CartPole-v1", ("prioritized=true",)), (PICTURES, ("features=16", "encoder=nature"))],
)
def test_replay_on_the_gpu_has_the_same_bits(tmp_path, task, settings):
    found = {}
    for where in ("cuda", "cpu"):
        words = [task, "--algo", "dqn", "--ml-framework", "jax"]
        words += [word for one in (*REPLAY, *settings, f"replay_device={where}") for word in ("--set", one)]
        found[where] = train(tmp_path / where, words)["params_fingerprint"]
    assert found["cuda"] == found["cpu"]


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_actor_critic_trains_from_replay_on_the_gpu_and_repeats_itself(tmp_path, algo):
    words = ["Pendulum-v1", "--algo", algo, "--ml-framework", "jax", "--set", "replay_device=cuda"]
    words += [word for one in REPLAY for word in ("--set", one)]
    first, second = (train(tmp_path / folder, words) for folder in ("a", "b"))
    assert first["params_fingerprint"] == second["params_fingerprint"]
    assert first["ranks"][0]["peak_device_memory"] > 0


@TWO_GPUS
@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_on_two_gpus_give_the_bits_of_one(tmp_path, name):
    one = train(tmp_path / "a", RUNS[name])
    two = train(tmp_path / "b", [*RUNS[name], "--ranks", "2"])
    assert (two["backend"], two["world_size"]) == ("nccl", 2)
    assert [device.partition(" ")[0] for device in two["devices"]] == ["cuda:0", "cuda:1"]
    assert one["params_fingerprint"] == two["params_fingerprint"]


@TWO_GPUS
def test_collectives_of_compiled_code_are_between_the_gpus():
    ranks = spawn(called.sums_between_devices, 2, (free_port(), "cuda", "auto"), timeout_s=240)
    called.check_sums_between_devices(ranks, "gpu", "nccl")
    assert [one["devices"] for one in ranks] == [[0], [1]]


def test_networks_copied_to_their_targets_change_nothing_else():
    """A program that is only copies between donated buffers, of which none may be written before it is read."""
    names = ("critics", "target", "moment", "square")
    with Comm(World(), device="cuda") as comm:
        copy = comm.spmd(lambda shared, own: (shared | {"target": shared["critics"]}, own))
        shared = comm.replicate({name: np.full(100_000, number, np.float32) for number, name in enumerate(names)})
        for _ in range(2):
            shared, _ = copy(shared, ())
        found = {name: set(array.tolist()) for name, array in comm.read(shared).items()}
    assert found == {"critics": {0.0}, "target": {0.0}, "moment": {2.0}, "square": {3.0}}
