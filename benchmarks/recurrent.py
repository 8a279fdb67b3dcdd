"""Recurrent PPO on one core: Lockstep beside sb3-contrib's RecurrentPPO, with the same settings.

    python benchmarks/recurrent.py --peer PYTHON [--steps 20000] [--rounds 3] [--size 64]

PYTHON is an interpreter that has sb3-contrib. Both step single `CartPole-v1` environments of Gymnasium in one process
(Lockstep with `env.vectorization=sync`), with an LSTM each for actor and critic, 8 environments x 128 steps, 4 epochs
of 4 minibatches. Each runs in a process of its own, in turn, `rounds` times; the table has medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PEER = """
import sys, time, torch
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.callbacks import BaseCallback
steps, size = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
model = RecurrentPPO(
    "MlpLstmPolicy", make_vec_env("CartPole-v1", 8), n_steps=128, batch_size=256, n_epochs=4, learning_rate=2.5e-4,
    policy_kwargs=dict(lstm_hidden_size=size, n_lstm_layers=1, enable_critic_lstm=True, net_arch=[64, 64]), seed=0,
)
start = time.perf_counter()
model.learn(steps)
print(model.num_timesteps / (time.perf_counter() - start))
"""


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--steps", type=int, default=20_480)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=64)
    args = parser.parse_args()
    cases = {"sb3-contrib RecurrentPPO, LSTM": lambda: _peer(args)}
    for kind in ("lstm", "gru"):
        for framework in ("torch", "jax"):
            cases[f"Lockstep, {framework}, {kind.upper()}"] = lambda k=kind, f=framework: _lockstep(args, k, f)
    speeds = {name: list[float]() for name in cases}
    for _ in range(args.rounds):
        for name, measure in cases.items():
            speeds[name].append(measure())
    medians = {name: statistics.median(found) for name, found in speeds.items()}
    peer = next(iter(medians.values()))
    print(f"CartPole-v1, 8 environments, {args.size} units, one core, load {os.getloadavg()[0]:.1f}")
    print("| | steps/s | ratio |\n|---|---|---|")
    for name, speed in medians.items():
        print(f"| {name} | {speed:.0f} | {speed / peer:.2f} |")


def _peer(args: argparse.Namespace) -> float:
    command = [args.peer, "-c", PEER, str(args.steps), str(args.size)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=_one_core())
    return float(done.stdout.split()[-1])


def _lockstep(args: argparse.Namespace, kind: str, framework: str) -> float:
    settings = {
        "num_envs": 8, "num_steps": 128, "num_epochs": 4, "num_minibatches": 4, "total_steps": args.steps,
        "network.recurrent": kind, "network.recurrent_size": args.size, "network.hidden": "[64,64]",
        "env.vectorization": "sync", "evaluate_episodes": 1, "stop_when_solved": "false",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "lockstep.train", "CartPole-v1", "--ml-framework", framework]
        command += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        subprocess.run([*command, "--run-dir", str(run_dir)], capture_output=True, check=True, env=_one_core())
        return float(json.loads((run_dir / "summary.json").read_text())["steps_per_second"])


def _one_core() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


if __name__ == "__main__":
    main()
