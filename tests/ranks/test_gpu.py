"""What needs a GPU; skipped without one."""

import json
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.gpu


def train(folder, *words):
    command = [
        sys.executable,
        "-m",
        "lockstep.train",
        "cartpole",
        "--run-dir",
        str(folder),
        "--set",
        "total_steps=20480",
    ]
    done = subprocess.run([*command, "--set", "device=cuda", *words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_one_gpu_trains_and_repeats_itself(tmp_path):
    first = train(tmp_path / "a", "--set", "num_shards=2")
    second = train(tmp_path / "b", "--set", "num_shards=2")
    assert first["devices"][0].startswith("cuda:0")
    assert first["params_fingerprint"] == second["params_fingerprint"]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than 2 GPUs")
def test_two_gpus_equal_one(tmp_path):
    one = train(tmp_path / "a", "--set", "num_shards=2")
    two = train(tmp_path / "b", "--set", "num_shards=2", "--ranks", "2")
    assert two["backend"] == "nccl"
    assert one["params_fingerprint"] == two["params_fingerprint"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_more_ranks_than_gpus_is_refused(tmp_path):
    count = torch.cuda.device_count()
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={count + 1}", "-m", "lockstep.train"]
    words = ["--task=CartPole-v1", "--distributed", "--set", "device=cuda", "--num_envs", str(8 * (count + 1))]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode != 0
    assert f"--nproc_per_node={count}" in done.stderr
