"""What needs a GPU; skipped without one."""

import ast
import json
import subprocess
import sys
import warnings
from pathlib import Path

import collectives
import pytest
import torch

from lockstep import spawn
from lockstep.cli import doctor
from lockstep.launch.rank_environment import free_port
from small_learners import STATED_WAITS, make, values

pytestmark = pytest.mark.gpu
# The mark skips without a GPU; this also where torch is a CPU build beside one.
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")


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


@NEEDS_GPU
def test_one_gpu_trains_and_repeats_itself(tmp_path):
    first = train(tmp_path / "a", "--set", "num_shards=2")
    second = train(tmp_path / "b", "--set", "num_shards=2")
    assert first["devices"][0].startswith("cuda:0")
    assert first["params_fingerprint"] == second["params_fingerprint"]
    assert 1 << 16 < first["ranks"][0]["peak_device_memory"] < 1 << 32
    assert sum(first["phases_s"].values()) == pytest.approx(first["wall_time_s"], rel=0.05)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than 2 GPUs")
def test_two_gpus_equal_one(tmp_path):
    one = train(tmp_path / "a", "--set", "num_shards=2")
    two = train(tmp_path / "b", "--set", "num_shards=2", "--ranks", "2")
    assert two["backend"] == "nccl"
    assert one["params_fingerprint"] == two["params_fingerprint"]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than 2 GPUs")
@pytest.mark.parametrize("skips_last", [False, True])
def test_gradients_sent_during_the_backward_pass_are_those_of_one_message(skips_last):
    ranks = spawn(collectives.overlapped_gradients, 2, (free_port(), "cuda"), timeout_s=120)
    collectives.check_overlapped_gradients(ranks, skips_last=skips_last)


@NEEDS_GPU
def test_more_ranks_than_gpus_is_refused(tmp_path):
    count = torch.cuda.device_count()
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={count + 1}", "-m", "lockstep.train"]
    words = ["--task=CartPole-v1", "--distributed", "--set", "device=cuda", "--num_envs", str(8 * (count + 1))]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode != 0
    assert f"--nproc_per_node={count}" in done.stderr


@NEEDS_GPU
@pytest.mark.parametrize("case", STATED_WAITS)
def test_update_waits_only_where_stated(tmp_path, case):
    """As on a pretended device in `tests/unit/torch/test_waits_for_device.py`."""
    name, config, expected = STATED_WAITS[case]
    one = make(name, tmp_path, "cuda", config)
    one.update(0)  # initializes the libraries
    one.update(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            one.update(2)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = {function_at(Path(w.filename), w.lineno) for w in caught if "synchronizing" in str(w.message)}
    assert waits == {wait.partition(":")[0] for wait in expected}


@NEEDS_GPU
@pytest.mark.parametrize("name", ["ppo", "dqn", "sac", "td3"])
def test_gradient_step_does_not_wait(tmp_path, name):
    one = make(name, tmp_path, "cuda")
    one.update(0)
    step = one.learner._step

    def watched(*given):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return step(*given)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    one.learner._step = watched
    one.update(1)


@NEEDS_GPU
@pytest.mark.parametrize("case", STATED_WAITS)
def test_captured_steps_have_the_same_bits(tmp_path, case):
    name, config, _ = STATED_WAITS[case]
    config = {key: value for key, value in config.items() if key != "dropout"}
    captured = make(name, tmp_path, "cuda", config, capture=True)
    eager = make(name, tmp_path, "cuda", config)
    for number in range(10):
        captured.update(number)
        eager.update(number)
    found = values(captured.learner)
    for key, value in values(eager.learner).items():
        torch.testing.assert_close(found[key], value, msg=lambda text, key=key: f"{key}: {text}")


@NEEDS_GPU
@pytest.mark.parametrize("case", ["dqn", "dqn, prioritized", "sac", "td3"])
def test_replay_on_the_gpu_has_the_same_bits(tmp_path, case):
    """The copies of observations from the host are on a stream of their own: none may be used before its end."""
    name, config, _ = STATED_WAITS[case]
    learners = {}
    for where in ("cuda", "cpu"):
        learners[where] = make(name, tmp_path, "cuda", config | {"replay_device": where})
        assert (learners[where].learner.storage.make_rows is not None) == (where == "cuda")
        for number in range(10):
            learners[where].update(number)
    found = values(learners["cuda"].learner)
    for key, value in values(learners["cpu"].learner).items():
        assert torch.equal(value, found[key]), key


@NEEDS_GPU
def test_captured_run_trains_and_repeats_itself(tmp_path):
    first = train(tmp_path / "a", "--set", "num_shards=2", "--set", "capture=true")
    second = train(tmp_path / "b", "--set", "num_shards=2", "--set", "capture=true")
    assert first["params_fingerprint"] == second["params_fingerprint"]


@NEEDS_GPU
def test_doctor_measures_the_gpu(capsys):
    assert doctor.examine(2) == 0
    printed = capsys.readouterr().out
    assert torch.cuda.get_device_name(0) in printed
    assert "NVIDIA driver" in printed
    assert "from page-locked memory" in printed


def function_at(path, line):
    """The qualified name of the function at a line of a file."""
    found = []

    def visit(node, names):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [*names, node.name]
            if node.lineno <= line <= (node.end_lineno or 0):
                found.append(".".join(names))
        for child in ast.iter_child_nodes(node):
            visit(child, names)

    visit(ast.parse(path.read_text()), [])
    return found[-1] if found else f"{path}:{line}"
