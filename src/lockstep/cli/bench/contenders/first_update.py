"""Seconds from the start of a process to the end of its first update of PPO on CartPole-v1 (8 environments x 128)."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from clock import arguments, report

SETTINGS = {
    "num_envs": 8, "num_steps": 128, "num_epochs": 4, "num_minibatches": 4, "evaluate_every": "null",
    "evaluate_episodes": 1, "stop_when_solved": "false", "checkpoint_every": "null", "device": "cpu",
}  # fmt: skip
SB3 = """
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
torch.set_num_threads(1)
PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=8), n_steps=128, batch_size=256, n_epochs=4, device="cpu").learn({})
"""


def of_lockstep(framework: str, steps: int) -> float:
    """From the start of the command to its first line of metrics, by the run's own clock."""
    words = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    words += ["--set", f"total_steps={steps}", "--ml-framework", framework]
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "lockstep.cli", "train", "CartPole-v1", *words, "--run-dir", str(run_dir)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        return json.loads((run_dir / "summary.json").read_text())["startup_s"]


def of_process(code: str) -> float:
    """Seconds of a whole process."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main(args: argparse.Namespace) -> None:
    """Measure, and print the seconds."""
    if args.who.startswith("lockstep"):
        seconds = of_lockstep("jax" if args.who.endswith("jax") else "torch", args.measured)
    elif args.who == "torch":
        seconds = of_process("import torch")
    else:
        peer = SB3.format(args.measured)
        seconds = of_process(
            peer.replace("stable_baselines3 import PPO", "sbx import PPO") if args.who == "sbx" else peer
        )
    report(seconds, ["stable-baselines3", "sbx-rl", "torch", "jax", "lockstep-rl"], of_children=True)


if __name__ == "__main__":
    main(arguments("who"))
