"""Every number of docs/results/gpu.md, on one GPU: written after each item, so that a run that is cut off goes on.

    python benchmarks/gpu.py --minutes 8 --out gpu.json
    python benchmarks/gpu.py --device cpu --scale 0.01 --out cpu.json       # does it run at all

Items are measured in order of value, each in a process of its own. What OUT holds already is skipped, and an item that
failed is tried again. The page says what each number means.
"""

import argparse
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np

ROOT = Path(__file__).parents[1]
TASK = "lockstep/Cartpole-v0"
PIXELS = "lockstep/PixelPong-v0"
LARGE = (4096, 16384)
PEERS = ("rsl_rl", "skrl", "rl_games")
NETWORKS = ("ppo_vector", "ppo_pixels", "dqn_pixels", "sac")
WAYS = {
    "eager": {"capture": False},
    "captured": {},
    "deterministic": {},
    "compiled": {"compile": True, "capture": False},
    "compiled_captured": {"compile": True},
    "max_autotune": {"compile": True, "compile_mode": "max-autotune"},
    "channels_last_bfloat16": {"precision": "bfloat16"},
}
"""Settings of a gradient step; those of the network and of the process are in `_step_of` and `_gradient_step`."""
COMPILED = ("compiled", "compiled_captured", "max_autotune")
PURE_JAX_RL = ("num_steps=128", "num_epochs=4", "num_minibatches=4", "learning_rate=2.5e-4")
"""PureJaxRL's settings of PPO for CartPole-v1."""
PURE_JAX_RL_FOLDER = "PURE_JAX_RL_FOLDER"
"""Environment variable: where its source is."""
CLEAN_RL_FOLDER = "CLEAN_RL_FOLDER"
"""Environment variable: a folder with CleanRL and the packages that it needs in other versions than we do."""
CLEAN_RL = {
    "dqn": (
        "num_envs=1", "num_steps=4", "capacity=100000", "batch_size=32", "updates_per_step=0.25",
        "learning_starts=1000", "target_update_every=250", "double=false", "loss=mse", "max_grad_norm=null",
        "learning_rate=1e-4",
    ),
    "ppo": ("num_envs=8", "num_steps=128", "num_epochs=4", "num_minibatches=4", "learning_rate=2.5e-4"),
}  # fmt: skip
"""CleanRL's settings for Atari; learning begins earlier and the buffer is smaller, which change no step.

Its `target_network_frequency=1000` counts environment steps: 250 gradient steps.
"""


def main() -> None:
    """Measure what OUT lacks until the time is up, and print what it holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="multiplies the number of environments, rows and steps"
    )
    parser.add_argument("--only", nargs="*", metavar="ITEM", help="some of the items, by the beginning of their names")
    parser.add_argument(
        "--purejaxrl", type=Path, metavar="DIR", help="PureJaxRL's source, which is on no package index"
    )
    parser.add_argument(
        "--cleanrl", type=Path, metavar="DIR", help="cleanrl 1.2.0, gymnasium 0.29.1, stable-baselines3 2.3.2, unpacked"
    )
    parser.add_argument("--item", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.item:
        print(json.dumps(ITEMS[args.item](args.device, args.scale)))
        return
    for variable, folder in ((PURE_JAX_RL_FOLDER, args.purejaxrl), (CLEAN_RL_FOLDER, args.cleanrl)):
        if folder:
            os.environ[variable] = str(folder.resolve())  # inherited by the processes of the items
    deadline = time.monotonic() + 60 * args.minutes
    found: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    for name in ITEMS:
        wanted = args.only is None or any(name.startswith(beginning) for beginning in args.only)
        if not wanted or "error" not in found.get(name, {"error": "not measured"}):
            continue
        left_s = deadline - time.monotonic()
        if left_s < 5:
            print(f"time is up; continue with the same command: {name} is next", flush=True)
            break
        found[name] = _measured(name, args, left_s)
        part = args.out.with_suffix(".part")
        part.write_text(json.dumps(found, indent=1))
        part.replace(args.out)
        print(f"{name}: {json.dumps(found[name])}", flush=True)


def _measured(name: str, args: argparse.Namespace, limit_s: float) -> dict[str, Any]:
    """The result of an item, measured by a process of its own."""
    command = [sys.executable, __file__, "--item", name, "--device", args.device, "--scale", str(args.scale)]
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    start = time.monotonic()
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"did not end within {limit_s:.0f} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1]) | {"took_s": round(time.monotonic() - start, 1)}


# -- whole runs --------------------------------------------------------------------------------------------------------


def _trained(device: str, scale: float, num_envs: int, *settings: str, framework: str = "torch") -> dict[str, Any]:
    """A run of PPO on `TASK` with the settings of Isaac Lab's cart-pole, in a process as users start it."""
    num_envs = max(int(num_envs * scale), 64)
    updates = 4 if scale < 1 else 30 if "capture=false" in settings else 150
    given = (f"num_envs={num_envs}", f"total_steps={num_envs * 16 * updates}", "num_minibatches=8", *settings)
    return _run(["cartpole_isaac", "--ml-framework", framework], device, num_envs, given)


def _pixels(device: str, scale: float, *settings: str, framework: str = "torch") -> dict[str, Any]:
    """PPO with the network of Atari on pictures that are drawn on the device, of 84 by 84 pixels, four a step."""
    num_envs = max(int(1024 * scale), 8)
    updates = 20 if scale == 1 else 2
    given = (
        f"num_envs={num_envs}", f"total_steps={num_envs * 32 * updates}", "num_steps=32", "num_epochs=4",
        "num_minibatches=8", "env.placement=device", *settings,
    )  # fmt: skip
    return _run([PIXELS, "--algo", "ppo", "--ml-framework", framework], device, num_envs, given)


def _pure_jax_rl(device: str, scale: float, num_envs: int) -> dict[str, Any]:
    """PPO on CartPole-v1 in JAX, environments and updates in one compiled function, with PureJaxRL's settings."""
    num_envs = max(int(num_envs * scale), 4)
    steps = num_envs * 128 * (100 if scale == 1 else 4)
    # PureJaxRL writes nothing during a run; of four lines here, three are measured.
    given = (f"num_envs={num_envs}", f"total_steps={steps}", f"log_every={steps // 4}", *PURE_JAX_RL)
    return _run(["cartpole_jax"], device, num_envs, given)


def _pure_jax_rl_itself(device: str, scale: float, num_envs: int) -> dict[str, Any]:
    """The same by PureJaxRL itself; steps per second of one compiled call, without the time of compiling it."""
    if PURE_JAX_RL_FOLDER not in os.environ:
        raise SystemExit("give --purejaxrl DIR, the folder with its source")
    num_envs = max(int(num_envs * scale), 4)
    script = ROOT / "src/lockstep/cli/bench/contenders/with_purejaxrl.py"
    steps = num_envs * 128 * (100 if scale == 1 else 4)
    command = [sys.executable, str(script), str(num_envs), os.environ[PURE_JAX_RL_FOLDER], "--measured", str(steps)]
    printed = _printed(command, {"JAX_PLATFORMS": "cpu"} if device == "cpu" else {})
    return {"num_envs": num_envs, "steps_per_second": round(json.loads(printed.splitlines()[-1])["value"])}


def _atari(device: str, scale: float, algo: str) -> dict[str, Any]:
    """Pong by environments on the host, with CleanRL's settings."""
    if importlib.util.find_spec("ale_py") is None:
        raise SystemExit("ale_py is not installed")
    given = (f"total_steps={max(int(8_192 * scale), 2_048)}", "log_every=512", *CLEAN_RL[algo])
    return _run(["ALE/Pong-v5", "--algo", algo], device, 8 if algo == "ppo" else 1, given)


def _atari_by_clean_rl(device: str, scale: float) -> dict[str, Any]:
    """The same by CleanRL's dqn_atari.py; steps per second as it prints them, from its first step to its last."""
    if CLEAN_RL_FOLDER not in os.environ:
        raise SystemExit("give --cleanrl DIR, the folder with its source")
    folder = Path(os.environ[CLEAN_RL_FOLDER])
    # gymnasium 0.29 is older than numpy 2 and than the games' registration by their package's import
    start = (
        "import sys, runpy, numpy; numpy.bool8 = numpy.bool_\n"
        "import gymnasium; from ale_py import registration; registration.register_v0_v4_envs()\n"
        "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    steps = max(int(8_192 * scale), 2_048)
    command = [sys.executable, "-c", start, str(folder / "cleanrl" / "dqn_atari.py"), "--env-id", "PongNoFrameskip-v4"]
    command += ["--total-timesteps", str(steps), "--learning-starts", "1000", "--buffer-size", "100000"]
    command += ["--cuda", str(device == "cuda")]
    path = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
    with tempfile.TemporaryDirectory() as where:
        printed = _printed(command, {"PYTHONPATH": path}, where)
    rates = [line.split()[1] for line in printed.splitlines() if line.startswith("SPS:")]
    return {"num_envs": 1, "steps_per_second": int(rates[-1])}


def _run(words: list[str], device: str, num_envs: int, settings: Sequence[str]) -> dict[str, Any]:
    """A run of the command line, without evaluations and checkpoints."""
    given = (
        f"device={device}", "evaluate_every=null", "evaluate_episodes=1", "checkpoint_every=null",
        "stop_when_solved=false", *settings,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lockstep", "train", *words, "--run-dir", f"{folder}/run"]
        command += [word for one in given for word in ("--set", one)]
        with _Utilization(device) as utilization:
            _printed(command)
        return _facts(Path(folder) / "run", num_envs) | {"utilization_percent": utilization.median()}


def _printed(command: list[str], variables: Mapping[str, str] | None = None, folder: str | None = None) -> str:
    """What a command printed; ends this item with the command's last line if it failed."""
    environment = os.environ | dict(variables or {})
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return done.stdout


class _Utilization:
    """How busy the GPU is, by nvidia-smi once a second: the share of the time in which any kernel runs."""

    def __init__(self, device: str) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._printed = ""
        if device == "cuda" and shutil.which("nvidia-smi"):
            command = [
                "nvidia-smi",
                "--query-gpu=utilization.gpu",
                "--format=csv,noheader,nounits",
                "-i",
                "0",
                "-l",
                "1",
            ]
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
            )

    def __enter__(self) -> "_Utilization":
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._printed = self._process.communicate()[0]

    def median(self) -> float | None:
        """Over the seconds in which the GPU did anything, start-up thus left out; None where it is not known."""
        values = [float(line) for line in self._printed.split() if line.isdecimal() and line != "0"]
        return float(np.median(values)) if values else None


def _of_peer(device: str, scale: float, library: str, num_envs: int) -> dict[str, Any]:
    """The same task trained by another library itself, with the same settings."""
    if importlib.util.find_spec(library) is None:
        raise SystemExit(f"{library} is not installed")
    num_envs = max(int(num_envs * scale), 64)
    sys.path.insert(0, str(ROOT / "src/lockstep/cli/bench/contenders"))
    import robot_settings

    settings = {
        "rsl_rl": robot_settings.rsl_rl, "skrl": robot_settings.skrl,
        "rl_games": lambda: robot_settings.rl_games(num_envs),
    }  # fmt: skip
    words = [sys.executable, "-m", f"lockstep.workflows.{library}", "--task", TASK, "--num_envs", str(num_envs)]
    with tempfile.TemporaryDirectory() as folder:
        agent = Path(folder) / "agent.yaml"
        agent.write_text(json.dumps(settings[library]()))  # JSON is YAML
        command = [*words, "--max_iterations", str(30 if scale == 1 else 4), "--device", device]
        command += ["--agent", str(agent)]
        _printed([*command, "--run_dir", f"{folder}/run"])
        return _facts(Path(folder) / "run", num_envs)


def _facts(run_dir: Path, num_envs: int) -> dict[str, Any]:
    """What the page reports of a run."""
    summary = json.loads((run_dir / "summary.json").read_text())
    peak = [rank.get("peak_device_memory") for rank in summary["ranks"]]
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    first, last = lines[len(lines) // 5], lines[-1]  # without what the first updates compile and allocate
    seconds = last["time_s"] - first["time_s"]
    return {
        "num_envs": num_envs,
        "steps_per_second": round((last["step"] - first["step"]) / seconds) if seconds else None,
        "with_first_updates": round(summary["steps_per_second"]),
        "startup_s": round(summary["startup_s"], 2),
        "phases_s": {name: round(seconds, 3) for name, seconds in summary["phases_s"].items() if seconds},
        "peak_device_memory": max((one for one in peak if one), default=None),
    }


# -- one gradient step -------------------------------------------------------------------------------------------------


def _gradient_step(device: str, scale: float, network: str, way: str) -> dict[str, Any]:
    """Microseconds of a gradient step on one minibatch, and its rows."""
    import torch

    torch.manual_seed(0)
    if way == "deterministic" and device == "cuda":
        from lockstep.torch.hardware import allow_tf32, use_deterministic_kernels

        use_deterministic_kernels()
        allow_tf32(False)
    rows = {"ppo_vector": 8192, "ppo_pixels": 1024, "dqn_pixels": 32, "sac": 256}[network]
    rows = max(int(rows * scale), 8)
    step = _step_of(network, rows, device, way)
    first = time.perf_counter()
    for _ in range(5):
        step()
    _synchronize(device)
    ready_s = time.perf_counter() - first
    took: list[float] = []
    for _ in range(3):
        count, start = max(int(100 * scale), 3), time.perf_counter()
        for _ in range(count):
            step()
        _synchronize(device)
        took.append((time.perf_counter() - start) / count)
    found = {"rows": rows, "microseconds": round(1e6 * min(took), 1), "first_five_s": round(ready_s, 2)}
    return found | (_kernels(step, 1e6 * min(took)) if device == "cuda" else {})


def _kernels(step: Callable[[], object], microseconds: float) -> dict[str, float]:
    """The sum of the times of all kernels of a step, and how many times as long the step takes."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    count = 20
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(count):
            step()
        torch.cuda.synchronize()
    events = [event for event in recorded.key_averages() if event.device_type == DeviceType.CUDA]
    total = sum(event.self_device_time_total for event in events) / count
    return {
        "kernel_microseconds": round(total, 1),
        "kernels": round(sum(event.count for event in events) / count),
        "ratio_to_kernels": round(microseconds / total, 2) if total else 0.0,
    }


def _step_of(network: str, rows: int, device: str, way: str) -> Callable[[], object]:
    """A function that takes a gradient step on the same minibatch each time."""
    from lockstep.algorithms.dqn import DQNConfig
    from lockstep.algorithms.ppo import PPOConfig
    from lockstep.algorithms.sac import SACConfig
    from lockstep.envs.spec import ActionSpec, EnvSpec
    from lockstep.run import NetworkConfig, Run
    from lockstep.torch.batch import Batch
    from lockstep.torch.comm import Comm
    from lockstep.torch.continuous_policy import ContinuousPolicy
    from lockstep.torch.dqn import DQN
    from lockstep.torch.networks import Policy
    from lockstep.torch.ppo import PPO
    from lockstep.torch.q_networks import QPolicy
    from lockstep.torch.sac import SAC
    from lockstep.torch.transitions import TransitionBatch
    from lockstep.world import World

    comm = Comm(World(), device=device)
    both: dict[str, Any] = {"task": "t", "non_finite": "skip", **WAYS[way]}
    pixels = NetworkConfig(channels_last=way.startswith("channels_last"))
    image = (4, 84, 84)
    discrete = EnvSpec(4 * 84 * 84, ActionSpec("discrete", (6,)), "same_step", True, image=image, frames=4)
    continuous = EnvSpec(48, ActionSpec("continuous", (12,), (-1.0,) * 12, (1.0,) * 12), "same_step", True)
    if network.startswith("ppo"):
        spec = continuous if network == "ppo_vector" else discrete
        hidden = NetworkConfig(hidden=(256, 128, 64)) if network == "ppo_vector" else pixels
        run = Run(**both, num_envs=rows, network=hidden, algorithm=PPOConfig(num_steps=1, num_minibatches=1))
        ppo = PPO(run, Policy(spec, hidden, seed=0).to(comm.device), comm)
        batch = Batch.blank(spec, rows, comm.device)
        batch.weight.fill_(1.0)
        return lambda: ppo._gradient_step([batch])
    replay: dict[str, Any] = {"batch_size": rows, "capacity": 1024, "learning_starts": 0}
    if network == "sac":
        hidden = NetworkConfig(hidden=(256, 256))
        run = Run(**both, algo="sac", num_envs=8, network=hidden, algorithm=SACConfig(**replay))
        sac = SAC(run, ContinuousPolicy(continuous, hidden, run.algorithm, seed=0).to(comm.device), comm)
        transitions = TransitionBatch.blank(continuous, rows, comm.device, num_actions=2)
        transitions.weight.fill_(1.0)
        return lambda: sac._gradient_step([transitions], True)
    run = Run(**both, algo="dqn", num_envs=8, network=pixels, algorithm=DQNConfig(**replay))
    dqn = DQN(run, QPolicy(discrete, run.network, run.algorithm, seed=0).to(comm.device), comm)
    transitions = TransitionBatch.blank(discrete, rows, comm.device)
    transitions.weight.fill_(1.0)
    return lambda: dqn._gradient_step([transitions])


def _replayed_step(device: str, scale: float, framework: str, replay_device: str) -> dict[str, Any]:
    """Microseconds of a gradient step of DQN on pixels, from the draw in the replay buffer on."""
    from lockstep.algorithms.dqn import DQNConfig
    from lockstep.envs.spec import ActionSpec, EnvSpec
    from lockstep.experience.rollout import Rollout
    from lockstep.record.progress import Progress
    from lockstep.run import Run

    if device == "cpu" and replay_device == "cuda":
        raise SystemExit("needs a GPU")
    num_steps, num_envs, count = 16, 8, max(int(256 * scale), 4)
    size = num_steps * num_envs
    config = DQNConfig(
        num_steps=num_steps, batch_size=32, capacity=max(int(100_000 * scale), 1024), learning_starts=0,
        updates_per_step=count / size, replay_device=cast(Any, replay_device),
    )  # fmt: skip
    run = Run(
        task="t", algo="dqn", ml_framework=cast(Any, framework), num_envs=num_envs, algorithm=config, non_finite="skip"
    )
    action = ActionSpec("discrete", (6,))
    spec = EnvSpec(4 * 84 * 84, action, "same_step", True, image=(4, 84, 84), frames=4)
    draw = np.random.default_rng(0)
    frames = draw.integers(256, size=(num_steps + 4, num_envs, 84, 84), dtype=np.uint8)
    stacks = np.stack([frames[t : t + 4].swapaxes(0, 1) for t in range(num_steps + 1)])
    goes_on, ones = np.zeros((num_steps, num_envs), np.bool_), np.ones((num_steps, num_envs), np.float32)
    chosen = draw.integers(6, size=goes_on.shape)
    took: list[float] = []
    with _dqn_of(framework, run, spec, device) as dqn:
        for _ in range(5):
            rollout = Rollout(stacks, chosen, ones, goes_on, goes_on, ones, [])
            start = time.perf_counter()
            dqn.update([rollout], np.zeros((1, 1)), Progress(100 * size))
            if framework == "torch":  # an update of JAX waits for the device
                _synchronize(device)
            took.append((time.perf_counter() - start) / count)
    return {"rows": 32, "microseconds": round(1e6 * min(took), 1)}


@contextmanager
def _dqn_of(framework: str, run: Any, spec: Any, device: str) -> Iterator[Any]:
    """DQN in a world of one."""
    from lockstep.world import World

    if framework == "torch":
        from lockstep.torch.comm import Comm
        from lockstep.torch.dqn import DQN
        from lockstep.torch.q_networks import QPolicy

        comm = Comm(World(), device=device)
        yield DQN(run, QPolicy(spec, run.network, run.algorithm, seed=0).to(comm.device), comm)
        return
    from lockstep.jax import comm as jax_comm
    from lockstep.jax import dqn, q_networks

    with jax_comm.Comm(World(), device=device) as opened:
        learner = dqn.DQN(run, q_networks.QPolicy(spec, run.network, run.algorithm, seed=0), opened)
        learner.warmup()
        yield learner


def _offline_dqn(device: str, scale: float, way: str) -> dict[str, Any]:
    """Rows per second of Q-learning from logs: rows of the host, 32 numbers and 8 actions, minibatches of 4096."""
    sys.path.insert(0, str(ROOT / "tests"))
    import made_data
    from lockstep.algorithms.offline import OfflineDQNConfig
    from lockstep.data.dataset import Dataset
    from lockstep.record.progress import Progress
    from lockstep.run import OfflineRun, ScoreNetworkConfig
    from lockstep.torch.comm import Comm
    from lockstep.torch.offline.dqn import OfflineDQN
    from lockstep.world import World
    from offline_policies import policy_for

    size = max(int(4096 * scale), 16)
    with tempfile.TemporaryDirectory() as folder:
        dataset = Dataset.open(made_data.discrete(Path(folder) / "data", 16 * size))
        run = OfflineRun(
            data="made", algo="dqn", network=ScoreNetworkConfig(hidden=(256, 128)), **WAYS[way],
            algorithm=OfflineDQNConfig(batch_size=size),
        )  # fmt: skip
        comm = Comm(World(), device=device)
        learner = OfflineDQN(run, policy_for(run, dataset).to(comm.device), comm, dataset.rows)
        parts = [[dataset.rows(np.arange(i * size, (i + 1) * size))] for i in range(16)]
        steps = max(int(320 * scale), 16)
        progress = Progress(10 * steps * size)
        for i in range(8):
            learner.update(parts[i], np.zeros((1, 1)), progress)
        _synchronize(device)
        start = time.perf_counter()
        for i in range(steps):
            learner.update(parts[i % 16], np.zeros((1, 1)), progress)
        _synchronize(device)
        return {"rows_per_second": round(steps * size / (time.perf_counter() - start)), "batch_size": size}


# -- the machine -------------------------------------------------------------------------------------------------------


def _machine(device: str, scale: float) -> dict[str, Any]:
    """What the numbers were measured on."""
    import torch

    cuda: Any = torch.version.cuda  # pyright: ignore[reportUnknownMemberType]
    name = torch.cuda.get_device_name(0) if device == "cuda" else platform.processor() or platform.machine()
    packages = {library: bool(importlib.util.find_spec(library)) for library in ("jax", *PEERS)}
    return {
        "device": name, "torch": torch.__version__, "cuda": cuda, "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)), "installed": packages, "scale": scale,
    }  # fmt: skip


def _copy(device: str, scale: float) -> dict[str, Any]:
    """Gigabytes per second between host and device, from ordinary and from page-locked memory."""
    from lockstep.torch.transfer import copy_rates

    return copy_rates(device, max(int((256 << 20) * scale), 1 << 16))


def _all_reduce(device: str, scale: float) -> dict[str, Any]:
    """Microseconds of an all-reduce between two ranks, by number of float32 values."""
    import torch

    from lockstep.cli.doctor import measure_all_reduce
    from lockstep.launch.local import spawn

    where = "cuda" if device == "cuda" and torch.cuda.device_count() > 1 else "cpu"
    (first, *_) = spawn(measure_all_reduce, 2, (where, (1_000, 1_000_000), max(int(50 * scale), 3)), timeout_s=120.0)
    seconds = {size: round(1e6 * took, 1) for size, took in first["seconds"].items()}
    return {"backend": first["backend"], "device": where, "microseconds": seconds}


def _synchronize(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


Item = Callable[[str, float], dict[str, Any]]


def _items() -> dict[str, Item]:
    """All items by name, the most valuable first."""
    items: dict[str, Item] = {"machine": _machine} | _cartpole_items(4096) | _cartpole_items(16384)
    items["pixels/1024/torch/captured"] = _pixels
    items["pixels/1024/jax"] = lambda d, s: _pixels(d, s, framework="jax")
    items |= _gradient_step_items("captured", NETWORKS)
    items["offline_dqn/captured"] = lambda d, s: _offline_dqn(d, s, "captured")
    for library, where in product(("torch", "jax"), ("cuda", "cpu")):
        items[f"replay/{library}/{where}"] = lambda d, s, n=library, w=where: _replayed_step(d, s, n, w)
    for size in (2048, 4):
        items[f"purejaxrl/{size}/jax"] = lambda d, s, n=size: _pure_jax_rl(d, s, n)
        items[f"purejaxrl/{size}/itself"] = lambda d, s, n=size: _pure_jax_rl_itself(d, s, n)
    items |= {f"atari/{algo}": lambda d, s, a=algo: _atari(d, s, a) for algo in CLEAN_RL}
    items["atari/dqn/cleanrl"] = _atari_by_clean_rl
    items |= {"copy": _copy, "all_reduce": _all_reduce}
    # What the host bounds takes long.
    items |= _gradient_step_items("eager", NETWORKS) | _gradient_step_items("deterministic", NETWORKS)
    items |= _gradient_step_items("channels_last_bfloat16", ("ppo_pixels", "dqn_pixels"))
    for size in LARGE:
        items[f"cartpole/{size}/torch/eager"] = lambda d, s, n=size: _trained(d, s, n, "capture=false")
    items["pixels/1024/torch/eager"] = lambda d, s: _pixels(d, s, "capture=false")
    items["offline_dqn/eager"] = lambda d, s: _offline_dqn(d, s, "eager")
    for way in COMPILED:  # compiling takes a minute
        items |= _gradient_step_items(way, NETWORKS)
    items["offline_dqn/compiled"] = lambda d, s: _offline_dqn(d, s, "compiled")
    return items


def _cartpole_items(size: int) -> dict[str, Item]:
    """Whole runs with thousands of environments on the device, and the same by other libraries."""
    items: dict[str, Item] = {
        f"cartpole/{size}/torch/captured": lambda d, s: _trained(d, s, size),
        f"cartpole/{size}/jax": lambda d, s: _trained(d, s, size, framework="jax"),
    }
    items |= {f"cartpole/{size}/{library}": lambda d, s, p=library: _of_peer(d, s, p, size) for library in PEERS}
    items[f"cartpole/{size}/torch/pinned"] = lambda d, s: _trained(d, s, size, "num_shards=1")
    return items


def _gradient_step_items(way: str, networks: Sequence[str]) -> dict[str, Item]:
    """One gradient step of each network."""
    return {f"gradient_step/{name}/{way}": lambda d, s, n=name: _gradient_step(d, s, n, way) for name in networks}


ITEMS = _items()

if __name__ == "__main__":
    main()
