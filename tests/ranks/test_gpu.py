"""What needs a GPU; skipped without one."""

import ast
import contextlib
import copy
import json
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from unittest import mock

import collectives
import pytest
import torch

from lockstep import spawn
from lockstep.cli import doctor
from lockstep.launch.rank_environment import free_port
from lockstep.run import NetworkConfig
from lockstep.torch import hardware
from lockstep.torch.capture import CapturedStep, CudaGraphs
from lockstep.torch.encoders import make_encoder
from lockstep.torch.state import LearnerState
from pixels import PIXELS
from small_learners import STATED_WAITS, make, values

pytestmark = pytest.mark.gpu
# The mark skips without a GPU; this also where torch is a CPU build beside one.
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")


# Of whole runs: recipe or task with its algorithm, and settings that make it small.
RUNS = {
    "ppo": ["cartpole", "--set", "total_steps=20480"],
    "ppo on tensors": ["cartpole_isaac", "--set", "num_envs=64", "--set", "total_steps=8192"],
    "dqn": ["cartpole_dqn", "--set", "total_steps=4096", "--set", "learning_starts=512"],
    "sac": ["pendulum_sac", "--set", "total_steps=1024", "--set", "learning_starts=256"],
    "td3": ["Pendulum-v1", "--algo", "td3", "--set", "total_steps=1024", "--set", "learning_starts=256"],
}


def command(folder, *words, run="ppo"):
    settings = ("device=cuda", "evaluate_every=null", "evaluate_episodes=2", "stop_when_solved=false")
    given = [*RUNS[run], "--run-dir", str(folder), *(word for one in settings for word in ("--set", one))]
    return [sys.executable, "-m", "lockstep.train", *given, *words]


def train(folder, *words, run="ppo"):
    done = subprocess.run(command(folder, *words, run=run), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "without CUDA graphs" not in done.stderr
    return json.loads((folder / "summary.json").read_text())


@pytest.fixture
def deterministic():
    """The kernels of pinned runs, in this process."""
    fill = torch.utils.deterministic.fill_uninitialized_memory
    hardware.use_deterministic_kernels()
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = fill


@contextlib.contextmanager
def synchronizations(mode):
    """Let torch warn of, or refuse, what makes the host wait for the GPU."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


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
    ranks = [f"--nproc_per_node={count + 1}", f"--master_port={free_port()}"]
    command = [sys.executable, "-m", "torch.distributed.run", *ranks, "-m", "lockstep.train"]
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
        with synchronizations("warn"):
            one.update(2)
    # torch warns once more, that this mode does not see all of them
    waits = {function_at(Path(w.filename), w.lineno) for w in caught if "called a synchronizing" in str(w.message)}
    assert waits == {wait.partition(":")[0] for wait in expected}


@NEEDS_GPU
@pytest.mark.parametrize("name", ["ppo", "dqn", "sac", "td3"])
def test_gradient_step_does_not_wait(tmp_path, name):
    one = make(name, tmp_path, "cuda")
    one.update(0)
    method = "_gradient_step" if name == "ppo" else "_step"
    step = getattr(one.learner, method)

    def watched(*given):
        with synchronizations("error"):
            return step(*given)

    setattr(one.learner, method, watched)
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
@pytest.mark.parametrize("settings", [[], ["network.recurrent=gru"], ["precision=bfloat16"], ["task=pictures"]])
def test_rollouts_are_captured_without_a_flag_and_have_the_bits_of_eager_ones(tmp_path, settings):
    pictures = ["lockstep/PixelPong-v0", "--algo", "ppo", "--set", "num_envs=16", "--set", "total_steps=16384"]
    name = "pictures" if settings == ["task=pictures"] else "ppo on tensors"
    words = [word for one in ("num_shards=2", *settings) if one != "task=pictures" for word in ("--set", one)]
    with mock.patch.dict(RUNS, pictures=pictures):
        captured = train(tmp_path / "a", *words, run=name)
        eager = train(tmp_path / "b", *words, "--set", "capture=false", run=name)
    said = "capture: steps of rollouts are CUDA graphs: acting and the environments"
    assert said in (tmp_path / "a" / "logs" / "rank_0.log").read_text()
    assert captured["params_fingerprint"] == eager["params_fingerprint"]
    assert captured["updates"] >= 5


@NEEDS_GPU
def test_older_graphs_that_nothing_refers_to_do_not_end_a_capture():
    graphs = CudaGraphs()
    number = torch.zeros(1, device="cuda")

    def add(inputs):
        [[[i]] for i in range(100_000)]  # many objects, as make the garbage collector run
        return number.add_(inputs[0])

    for _ in range(3):
        old = CapturedStep(add, graphs)
        old.itself = old  # only the garbage collector frees it
        for _ in range(5):
            old([number])
        del old
        made = CapturedStep(add, graphs)
        for _ in range(5):
            made([number])


@NEEDS_GPU
@pytest.mark.parametrize("run", RUNS)
def test_steps_are_captured_without_a_flag_and_have_the_bits_of_eager_ones(tmp_path, run):
    words = ["--set", "num_shards=2", "--set", f"total_steps={8192 if run.startswith('ppo') else 1024}"]
    captured = train(tmp_path / "a", *words, run=run)
    eager = train(tmp_path / "b", *words, "--set", "capture=false", run=run)
    log = (tmp_path / "a" / "logs" / "rank_0.log").read_text()
    assert "capture: gradient steps are CUDA graphs" in log
    assert ("capture: acting is a CUDA graph" in log) == (run != "ppo on tensors")
    assert captured["params_fingerprint"] == eager["params_fingerprint"]


@NEEDS_GPU
@pytest.mark.parametrize(
    ("run", "setting"), [("ppo", "network.recurrent=gru"), ("dqn", "noisy=true"), ("ppo", "precision=bfloat16")]
)
def test_captured_acting_has_the_bits_of_eager_acting(tmp_path, run, setting):
    words = ["--set", "num_shards=2", "--set", setting, "--set", f"total_steps={8192 if run == 'ppo' else 1024}"]
    captured = train(tmp_path / "a", *words, run=run)
    eager = train(tmp_path / "b", *words, "--set", "capture=false", run=run)
    assert "capture: acting is a CUDA graph" in (tmp_path / "a" / "logs" / "rank_0.log").read_text()
    assert captured["params_fingerprint"] == eager["params_fingerprint"]


@NEEDS_GPU
def test_doctor_measures_the_gpu(capsys):
    assert doctor.examine(2) == 0
    printed = capsys.readouterr().out
    assert torch.cuda.get_device_name(0) in printed
    assert "NVIDIA driver" in printed
    assert "from page-locked memory" in printed


@NEEDS_GPU
@pytest.mark.parametrize("capture", [False, True])
@pytest.mark.parametrize("case", STATED_WAITS)
def test_same_seed_has_the_same_bits(deterministic, tmp_path, case, capture):
    name, config, _ = STATED_WAITS[case]
    found = []
    for _ in range(2):
        one = make(name, tmp_path, "cuda", config, capture=capture)
        for number in range(6):
            one.update(number)
        found.append(values(one.learner))
    assert all(torch.equal(value, found[1][key]) for key, value in found[0].items())


@NEEDS_GPU
@pytest.mark.parametrize("case", [case for case in STATED_WAITS if case != "ppo on tensors"])
def test_restored_learner_continues_with_the_same_bits(deterministic, tmp_path, case):
    name, config, _ = STATED_WAITS[case]
    one = make(name, tmp_path, "cuda", config)
    for number in range(3):
        one.update(number)
    shared = {key: array.copy() for key, array in LearnerState(one.learner).shared_arrays().items()}
    of_shards = [copy.deepcopy(one.learner.shard_state(k)) for k in range(2)]
    other = make(name, tmp_path, "cuda", config)
    LearnerState(other.learner).load_shared(shared)
    for k, state in enumerate(of_shards):
        other.learner.restore_shard(k, state)
    for number in range(3, 6):
        one.update(number)
        other.update(number)
    found = values(other.learner)
    assert all(torch.equal(value, found[key]) for key, value in values(one.learner).items())


@NEEDS_GPU
@pytest.mark.parametrize("run", RUNS)
def test_killed_and_resumed_run_has_the_bits_of_an_undisturbed_one(tmp_path, run):
    total = int(RUNS[run][-1].partition("=")[2]) if run.startswith("ppo") else 1024
    words = ["--set", "num_shards=2", "--set", f"total_steps={total}", "--set", f"checkpoint_every={total // 4}"]
    undisturbed = train(tmp_path / "a", *words, run=run)
    folder = tmp_path / "b"
    process = subprocess.Popen(command(folder, *words, run=run), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not [*folder.glob("checkpoints/step_*/manifest.json")] and process.poll() is None:
        assert time.monotonic() < until, "no checkpoint was written"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    resume = [sys.executable, "-m", "lockstep.train", "--resume", str(folder)]
    done = subprocess.run(resume, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["params_fingerprint"] == undisturbed["params_fingerprint"]


@NEEDS_GPU
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("encoder", ["nature", "impala", "wide"])
def test_convolutions_of_pinned_runs_repeat_themselves(deterministic, encoder, channels_last):
    """Their fastest backward pass adds by atomics, in any order: whether it does here is printed (`pytest -s`)."""
    torch.manual_seed(0)
    config = NetworkConfig(encoder=encoder, features=64, channels_last=channels_last)
    network = make_encoder(PIXELS, config).cuda()
    images = torch.randint(256, (256, 4, 84, 84), dtype=torch.uint8).cuda()

    def gradients():
        parts = torch.autograd.grad(network(images).square().sum(), [*network.parameters()])
        return torch.cat([part.reshape(-1) for part in parts])

    def differing():
        first = gradients()
        return sum(not torch.equal(first, gradients()) for _ in range(10))

    assert differing() == 0
    torch.use_deterministic_algorithms(False)
    print(f"{encoder}, channels_last={channels_last}: {differing()} of 10 differ without deterministic kernels")


@NEEDS_GPU
@pytest.mark.parametrize("settings", [["tf32=true"], ["precision=bfloat16"], ["compile=true"]])
def test_settings_of_arithmetic_train(tmp_path, settings):
    words = [word for one in settings for word in ("--set", one)]
    assert train(tmp_path, *words)["updates"] > 0


@NEEDS_GPU
@pytest.mark.parametrize("settings", [["capture=false"], []])
def test_two_ranks_that_share_a_gpu_equal_one_rank(tmp_path, settings):
    """Through gloo, with pinned shards; captured steps of two ranks have the collective between their graphs."""
    words = [word for one in ("num_shards=2", *settings) for word in ("--set", one)]
    one = train(tmp_path / "a", *words)
    two = train(tmp_path / "b", *words, "--ranks", "2", "--set", "share_gpus=true")
    assert (two["backend"], two["world_size"]) == ("gloo", 2)
    assert {device.partition(" ")[0] for device in two["devices"]} == {"cuda:0"}
    assert one["params_fingerprint"] == two["params_fingerprint"]


@NEEDS_GPU
def test_two_captured_ranks_equal_eager_ones(tmp_path):
    words = ["--set", "num_shards=2", "--ranks", "2", "--set", "share_gpus=true"]
    eager = train(tmp_path / "a", *words, "--set", "capture=false")
    captured = train(tmp_path / "b", *words)
    assert eager["params_fingerprint"] == captured["params_fingerprint"]


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
