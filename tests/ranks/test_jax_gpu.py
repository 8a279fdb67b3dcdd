"""JAX on a GPU; skipped without one."""

import json
import subprocess
import sys

import pytest

from lockstep.launch.gpus import visible_gpus

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not visible_gpus("jax"), reason="JAX finds no GPU")]
RUNS = {
    "environments on the device": ["cartpole_jax", "--set", "total_steps=40960"],
    "environments on the host": ["cartpole", "--ml-framework", "jax", "--set", "total_steps=8192"],
}


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
