"""SAC and TD3 on HalfCheetah, ours against Stable-Baselines3: environment steps per second on one core, with learning.

    python benchmarks/continuous.py --peer-python PEERS/bin/python
    python benchmarks/continuous.py --peer-python PEERS/bin/python --algo sac --repetitions 5 --precision bfloat16

PEERS is a virtual environment with `stable-baselines3`, `gymnasium[mujoco]` and the same torch. The same work for both:
networks of two layers of 256 units, a gradient step on 256 transitions for every environment step, one thread.
Stable-Baselines3 steps one environment, ours steps 8 and takes 8 gradient steps after each. Each repetition is a fresh
process, ours and theirs in turn; only its steady state counts. On a shared machine the processor time is the better
measure: steps per second of processor time are those of a core that does nothing else.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

TASK = "HalfCheetah-v5"
LEARNING_STARTS = 256
WARM_UP = 512

Marks = list[tuple[int, float, float]]
"""Environment steps so far, seconds, and seconds of processor time."""


def mark(marks: Marks, steps: int) -> None:
    """Note the time once `steps` environment steps are taken."""
    marks.append((steps, time.perf_counter(), time.process_time()))


def speeds(marks: Marks) -> dict[str, float]:
    """Steps per second, and per second of processor time, after the warm-up."""
    first = next(one for one in marks if one[0] >= WARM_UP)
    steps, wall, processor = (b - a for a, b in zip(first, marks[-1], strict=True))
    return {"wall": steps / wall, "processor": steps / processor}


def ours(algo: str, steps: int, precision: str) -> Marks:
    """Train with Lockstep."""
    import importlib

    from lockstep.run import Run, override
    from lockstep.train import train

    module = importlib.import_module(f"lockstep.torch.{algo}")
    learner: Any = getattr(module, algo.upper())
    update: Callable[..., Any] = learner.update
    marks: Marks = []

    def marked(self: Any, rollouts: Any, sums: Any, progress: Any) -> Any:
        mark(marks, progress.env_steps)
        return update(self, rollouts, sums, progress)

    learner.update = marked
    settings = {
        "total_steps": WARM_UP + steps, "learning_starts": LEARNING_STARTS, "capacity": 100_000, "num_envs": 8,
        "evaluate_every": None, "evaluate_episodes": 1, "checkpoint_every": None, "env.max_episode_steps": 50,
        "precision": precision, "device": "cpu",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        train(override(Run(task=TASK), {"algo": algo, **settings}), run_dir=Path(folder) / "run")
    return marks


def theirs(algo: str, steps: int) -> Marks:
    """Train with Stable-Baselines3."""
    import torch
    from stable_baselines3 import SAC, TD3
    from stable_baselines3.common.callbacks import BaseCallback

    torch.set_num_threads(1)
    marks: Marks = []

    class Marked(BaseCallback):
        def _on_step(self) -> bool:
            mark(marks, self.num_timesteps)
            return True

    model = {"sac": SAC, "td3": TD3}[algo](
        "MlpPolicy", TASK, learning_rate=3e-4, batch_size=256, buffer_size=100_000, learning_starts=LEARNING_STARTS,
        train_freq=1, gradient_steps=1, policy_kwargs={"net_arch": [256, 256]}, device="cpu",
    )  # fmt: skip
    model.learn(WARM_UP + steps, callback=Marked())
    return marks


def measured(python: str, side: str, args: argparse.Namespace, algo: str) -> dict[str, float]:
    """The speeds of one fresh process."""
    command = [python, __file__, "--side", side, "--algo", algo, "--steps", str(args.steps)]
    command += ["--precision", args.precision]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print a table: median steps per second of both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="the Python of a virtual environment with stable-baselines3")
    parser.add_argument("--algo", choices=["sac", "td3"], help="default: both")
    parser.add_argument("--steps", type=int, default=1024, help="environment steps that are measured")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32", help="of ours")
    parser.add_argument("--side", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side is not None:
        marks = ours(args.algo, args.steps, args.precision) if args.side == "ours" else theirs(args.algo, args.steps)
        print(json.dumps(speeds(marks)))
        return
    if args.peer_python is None:
        parser.error("--peer-python is needed: a virtual environment with stable-baselines3")
    print("| algorithm | per second of | ours | Stable-Baselines3 | ratio |\n|---|---|---|---|---|")
    for algo in [args.algo] if args.algo else ["sac", "td3"]:
        found: dict[str, list[dict[str, float]]] = {"ours": [], "theirs": []}
        for _ in range(args.repetitions):
            found["ours"].append(measured(sys.executable, "ours", args, algo))
            found["theirs"].append(measured(args.peer_python, "theirs", args, algo))
        for name, clock in (("processor time", "processor"), ("wall clock", "wall")):
            mine, peer = (median(one[clock] for one in found[side]) for side in ("ours", "theirs"))
            print(f"| {algo} | {name} | {mine:.0f} | {peer:.0f} | {mine / peer:.2f} |")


if __name__ == "__main__":
    main()
