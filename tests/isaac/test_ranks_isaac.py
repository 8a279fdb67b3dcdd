"""Two ranks on the real `Isaac-Cartpole`, on a CPU: Lockstep's PPO, and the workflows of skrl, rl_games and rsl_rl."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "hosts"))
from network import Network, missing

from lockstep.launch.rank_environment import free_port

pytestmark = pytest.mark.isaac
if find_spec("isaaclab_tasks") is None:
    pytest.skip("needs Isaac Lab: make test-isaac", allow_module_level=True)

ROOT = Path(__file__).parents[2]
TORCHRUN = ("torch.distributed.run", "--nnodes=1", "--nproc_per_node=2")
JAX = ("lockstep.launch.jax", "--nnodes=1", "--nproc_per_node=2")
TASK = ("--task=Isaac-Cartpole-v0", "--headless", "--distributed", "--run_dir=run")
SHORT = ("--num_envs=64", "--max_iterations=2")
EVALUATE_ONCE = ("--set=evaluate_every=null", "--set=evaluate_episodes=1", "--set=env.max_episode_steps=20")
# A function of `symmetry` that changes nothing, and ends rank 1 in its second update.
FAILING = """
import os

calls = 0

def mirror(observation, action):
    global calls
    calls += 1
    if os.environ["RANK"] == "1" and calls == 3:  # the first call is a check before the run
        os._exit(7)
    return observation, action
"""
# skrl's published examples are scripts like this one. It knows nothing of Lockstep.
SKRL_SCRIPT = """
import gymnasium as gym
import yaml
from skrl import config
from skrl.envs.wrappers.jax import wrap_env
from skrl.utils.runner.jax import Runner

env = wrap_env(gym.make_vec("Pendulum-v1", num_envs=4, vectorization_mode="sync"))
runner = Runner(env, yaml.safe_load(open("agent.yaml")))
runner.run()
print(f"rank {config.jax.rank} of {config.jax.world_size} has finished", flush=True)
"""
SKRL_AGENT = """
seed: 7
models:
  separate: True
  policy: &policy
    class: GaussianMixin
    initial_log_std: 0.0
    network: [{name: net, input: OBSERVATIONS, layers: [8], activations: elu}]
    output: ACTIONS
  value:
    class: DeterministicMixin
    network: [{name: net, input: OBSERVATIONS, layers: [8], activations: elu}]
    output: ONE
memory: {class: RandomMemory, memory_size: -1}
agent:
  class: PPO
  rollouts: 8
  learning_epochs: 1
  mini_batches: 1
  experiment: {write_interval: 0, checkpoint_interval: 0}
trainer: {class: SequentialTrainer, timesteps: 16, close_environment_at_exit: False}
"""


@pytest.fixture
def start(tmp_path):
    """`start(*words)` starts `python -m WORDS` in `tmp_path`."""
    started = []

    def _start(*words):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "WORLD_", "JAX_"))}
        environment = clean | {"OMP_NUM_THREADS": "1"} | own_variables()
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen([sys.executable, "-m", *words], cwd=tmp_path, env=environment, **pipes))
        return started[-1]

    yield _start
    for process in started:
        process.kill()
        process.wait()


def own_variables():
    assets = os.environ.get("ISAACSIM_ASSET_ROOT", str(Path(sys.prefix) / "assets"))
    return {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT / "src"), "ISAACSIM_ASSET_ROOT": assets}


def end(process):
    out, _ = process.communicate(timeout=540)
    return process.returncode, out


def check_two_ranks(folder, out, num_ranks=2):
    """Ranks collected different data and ended with equal parameters; rank 0 wrote the results."""
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert (summary["status"], summary["world_size"], summary["task"]) == ("finished", num_ranks, "Isaac-Cartpole"), out
    ranks = summary["ranks"]
    assert len({one["params_fingerprint"] for one in ranks}) == 1
    assert len({one["first_rollout_fingerprint"] for one in ranks}) == num_ranks
    assert len({one["seed"] for one in ranks}) == num_ranks
    assert "is called Isaac-Cartpole" in out and f"parameters are equal on all {num_ranks} ranks" in out
    assert len((folder / "run" / "metrics.jsonl").read_text().splitlines()) == summary["updates"] == 2
    return summary


OWN_PPO = {
    "torch": (*TORCHRUN, "-m", "lockstep.train", *TASK, *SHORT, *EVALUATE_ONCE),
    "jax": (*JAX, "-m", "lockstep.train", *TASK, *SHORT, *EVALUATE_ONCE, "--ml_framework", "jax"),
}


@pytest.mark.parametrize("framework", [pytest.param("torch", marks=pytest.mark.isaac_short), "jax"])
def test_own_ppo_trains_on_two_ranks(start, tmp_path, framework):
    code, out = end(start(*OWN_PPO[framework]))
    assert code == 0, out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["world_size"], summary["updates"]) == ("finished", 2, 2)
    assert "is called Isaac-Cartpole" in out
    assert "parameters equal on both ranks" in out and "data different on both ranks" in out


def test_jax_reads_tensors_through_dlpack_with_the_bits_of_the_host(start, tmp_path):
    found = []
    for placement in ("auto", "host"):
        flags = ("--task=Isaac-Cartpole", f"--run_dir={placement}", "--ml_framework=jax", *SHORT, *EVALUATE_ONCE)
        code, out = end(start("lockstep.train", *flags, f"--set=env.placement={placement}"))
        assert code == 0, out
        assert ("environments on torch tensors, on cpu" in out) == (placement == "auto"), out
        found.append(json.loads((tmp_path / placement / "summary.json").read_text())["ranks"][0])
    for name in ("first_rollout_fingerprint", "params_fingerprint"):
        assert found[0][name] == found[1][name]


@pytest.mark.isaac_short
def test_exit_code_of_a_failing_rank_is_that_of_the_run(start, tmp_path):
    (tmp_path / "failing.py").write_text(FAILING)
    flags = ("--task=Isaac-Cartpole", "--ranks=2", "--run-dir=run", "--num_envs=64", "--max_iterations=50")
    changes = ("--set=evaluate_every=null", "--set=kl_reference=rollout", "--set=symmetry=failing.py:mirror")
    code, out = end(start("lockstep.train", *flags, *changes))
    assert code == 7, out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed" and "rank 1" in summary["error"]


@pytest.mark.isaac_short
@pytest.mark.parametrize(
    ("library", "flags"),
    [
        ("rsl_rl", SHORT),
        ("skrl", SHORT),
        ("rl_games", ("--num_envs=512", "--max_iterations=2")),  # its minibatch of 8192 needs as many
    ],
)
def test_torchrun_starts_two_ranks(start, tmp_path, library, flags):
    code, out = end(start(*TORCHRUN, "-m", f"lockstep.workflows.{library}", *TASK, *flags))
    assert code == 0, out
    check_two_ranks(tmp_path, out)


def test_own_launcher_starts_two_ranks(start, tmp_path):
    code, out = end(start("lockstep.workflows.rsl_rl", *TASK, *SHORT, "--ranks", "2"))
    assert code == 0, out
    check_two_ranks(tmp_path, out)
    assert {path.name for path in (tmp_path / "run" / "logs").iterdir()} == {"rank_0.log", "rank_1.log"}


def test_skrl_on_two_nodes(start, tmp_path):
    endpoint = f"--rdzv_endpoint=localhost:{free_port()}"
    meet = ("--rdzv_id=123", "--rdzv_backend=c10d", endpoint, "--nproc_per_node=1")
    words = ("-m", "lockstep.workflows.skrl", *TASK, *SHORT)
    nodes = [start("torch.distributed.run", "--nnodes=2", f"--node_rank={rank}", *meet, *words) for rank in range(2)]
    codes, outs = zip(*(end(node) for node in nodes), strict=True)
    assert codes == (0, 0), outs
    check_two_ranks(tmp_path, "".join(outs))


WITH_TORCHRUN = (
    "torch.distributed.run --nnodes=2 --node_rank={} --rdzv_id=123 --rdzv_backend=c10d --rdzv_endpoint={}:5555"
)
WITH_JAX = "lockstep.launch.jax --nnodes=2 --node_rank={} --coordinator_address={}:5555"
ON_TWO_HOSTS = {
    "skrl": (WITH_TORCHRUN, "lockstep.workflows.skrl", SHORT),
    "rsl_rl": (WITH_TORCHRUN, "lockstep.workflows.rsl_rl", SHORT),
    "rl_games": (WITH_TORCHRUN, "lockstep.workflows.rl_games", ("--num_envs=512", "--max_iterations=2")),
    "skrl in JAX": (WITH_JAX, "lockstep.workflows.skrl", (*SHORT, "--ml_framework=jax")),
    "own PPO": (WITH_TORCHRUN, "lockstep.train", (*SHORT, *EVALUATE_ONCE)),
    "own PPO in JAX": (WITH_JAX, "lockstep.train", (*SHORT, *EVALUATE_ONCE, "--ml_framework=jax")),
}
"""Launcher, module and its flags."""


@pytest.mark.parametrize("name", ON_TWO_HOSTS)
def test_two_hosts(tmp_path, name):
    """Hosts are network namespaces with a folder in common; torchrun's endpoint is `localhost` where it is served."""
    if reason := missing():
        pytest.skip(reason)
    launcher, module, flags = ON_TWO_HOSTS[name]
    served_as = "localhost" if launcher == WITH_TORCHRUN else "10.77.0.1"
    words = ["--nproc_per_node=1", "-m", module, *TASK, *flags]
    with Network(2, tmp_path) as network:
        commands = [
            host.start([sys.executable, "-m", *launcher.format(rank, endpoint).split(), *words], own_variables())
            for rank, (host, endpoint) in enumerate(zip(network.hosts, (served_as, "10.77.0.1"), strict=True))
        ]
        codes = [command.wait(within_s=540) for command in commands]
        outs = "".join(command.said for command in commands)
        assert codes == [0, 0], outs
        if module == "lockstep.train":
            summary = json.loads((network.shared / "run" / "summary.json").read_text())
            assert (summary["status"], summary["world_size"], summary["updates"]) == ("finished", 2, 2)
            assert "parameters equal on both ranks" in outs and "data different on both ranks" in outs
        else:
            summary = check_two_ranks(network.shared, outs)
    assert [one["host"] for one in summary["ranks"]] == ["alpha", "beta"]


def test_skrl_on_jax_with_two_processes(start, tmp_path):
    pytest.importorskip("flax")
    code, out = end(start(*JAX, "-m", "lockstep.workflows.skrl", *TASK, *SHORT, "--ml_framework", "jax"))
    assert code == 0, out
    assert check_two_ranks(tmp_path, out)["ml_framework"] == "jax"


def test_skrl_script_for_jax_runs_unchanged_on_two_processes(start, tmp_path):
    pytest.importorskip("flax")
    (tmp_path / "train.py").write_text(SKRL_SCRIPT)
    (tmp_path / "agent.yaml").write_text(SKRL_AGENT)
    code, out = end(start(*JAX, "train.py"))
    assert code == 0, out
    for rank in range(2):
        assert f"rank {rank} of 2 has finished" in out


@pytest.mark.parametrize("task", ["Pendulum-v1", "lockstep/Cartpole-v0"])
def test_other_tasks_train_with_a_config_file(start, tmp_path, task):
    (tmp_path / "agent.yaml").write_text(SKRL_AGENT)
    flags = ("--agent=agent.yaml", "--num_envs=8", "--ranks=2", "--run_dir=run")
    code, out = end(start("lockstep.workflows.skrl", f"--task={task}", *flags))
    assert code == 0, out
    assert "parameters are equal on all 2 ranks" in out
    assert list((tmp_path / "run" / "skrl" / "checkpoints").iterdir())


def test_wrong_settings_end_all_ranks_with_code_2(start, tmp_path):
    code, out = end(start("lockstep.workflows.rl_games", *TASK, "--num_envs=100", "--ranks", "2"))
    assert code == 2
    assert "num_envs=100: rl_games cuts" in out and "--num_envs 512" in out


def test_pinned_shards_give_the_same_bits_on_one_and_two_ranks(start, tmp_path):
    """A rank with two shards has its second simulator in a process of its own."""
    summaries = []
    for ranks in (1, 2):
        folder = f"{ranks}-ranks"
        flags = ("--task=Isaac-Cartpole", f"--ranks={ranks}", f"--run-dir={folder}", *SHORT, "--set=num_shards=2")
        code, out = end(start("lockstep.train", *flags, *EVALUATE_ONCE))
        assert code == 0, out
        summaries.append(json.loads((tmp_path / folder / "summary.json").read_text()))
    one, two = summaries
    assert one["params_fingerprint"] == two["params_fingerprint"]
    assert one["eval_return_mean"] == two["eval_return_mean"]
    assert len({rank["first_rollout_fingerprint"] for rank in two["ranks"]}) == 2
