"""Does it learn from a log of continuous actions? From episodes of half-trained PPO policies; prints a markdown table.

python benchmarks/offline_continuous.py --seeds 3 --algo iql td3_bc
python benchmarks/offline_continuous.py --task Hopper-v5

Every seed trains a policy of its own, stops half-way, and records it with `lockstep offline record --sampled`. Of
Hopper, half-way is an evaluation of 1500 at the least, and the policy after half of these steps is recorded as well, so
that the log is mixed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Task:
    """How a task is half learned, and how the log is learned from."""

    train: str
    """Recipe or task of the policy that is recorded."""
    half_way: tuple[str, ...]
    """Settings that end its training when it is half trained."""
    mixed: bool
    """Whether the log also has episodes of the policy after half of these steps."""
    episodes: int
    """Recorded of each policy."""
    offline: tuple[str, ...]
    """Settings of all algorithms on the log."""
    own: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """More of them, by algorithm."""


TASKS = {
    "Pendulum-v1": Task(
        train="pendulum",
        half_way=(
            "total_steps=57344",
            "stop_return=null",
            "stop_when_solved=false",
            "evaluate_every=null",
            "evaluate_episodes=1",
        ),
        mixed=False,
        episodes=100,
        offline=("gamma=0.95", "reward_scale=0.1", "learning_rate=1e-3", "target_rate=0.01", "epochs=80"),
        own={"cql": ("cql_alpha=1", "num_sampled_actions=4")},
    ),
    "Hopper-v5": Task(
        train="Hopper-v5",
        half_way=("stop_return=1500", "evaluate_every=25000", "checkpoint_every=25000", "num_checkpoints=100"),
        mixed=True,
        episodes=400,
        offline=("learning_rate_schedule=linear", "epochs=60"),
        # After half of these epochs, values and with them the weights exp(beta A) are far off: docs/results/offline.md.
        own={"iql": ("reward_scale=0.3", "ml_framework=jax")},
    ),
}


def run(*words: object) -> None:
    """Run a command of Lockstep; print what it says only if it fails."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    words = tuple(map(str, words))
    done = subprocess.run(
        [sys.executable, "-m", "lockstep.cli", *words], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)


def options(settings: tuple[str, ...] | list[str]) -> list[str]:
    """`--set` for each of the settings."""
    return [word for setting in settings for word in ("--set", setting)]


def write_log(folder: Path, name: str, seed: int) -> list[float]:
    """Train half-way, record and prepare; returns the returns of the logged episodes, the best first."""
    task, trained = TASKS[name], folder / f"half_{seed}"
    run("train", task.train, "--seed", seed, "--run-dir", trained, *options(task.half_way))
    checkpoints = checkpoints_of(trained)
    policies = [checkpoints[(len(checkpoints) - 1) // 2], trained] if task.mixed else [trained]
    log, returns = folder / f"log_{seed}.jsonl", defaultdict[str, float](float)
    with log.open("w") as rows:
        for number, policy in enumerate(policies):
            part = folder / f"log_{seed}_{number}.jsonl"
            episodes = ("--episodes", task.episodes, "--seed", seed + number)
            run("offline", "record", policy, "--sampled", *episodes, "--out", part)
            for line in part.read_text().splitlines():
                row = json.loads(line)
                row["mdp_id"] = f"{number}-{row['mdp_id']}"
                returns[row["mdp_id"]] += row["reward"]
                rows.write(json.dumps(row) + "\n")
    run("offline", "prepare", log, "--out", folder / f"data_{seed}")
    return sorted(returns.values(), reverse=True)


def checkpoints_of(run_dir: Path) -> list[Path]:
    """The checkpoints of a run, in the order of their steps."""
    return sorted((run_dir / "checkpoints").glob("step_*"), key=lambda path: int(path.name.removeprefix("step_")))


def learn(folder: Path, name: str, seed: int, algo: str, changes: list[str]) -> dict:
    """The summary of a run that learned from the log of `write_log` and then played 100 episodes."""
    folder_of_run = folder / f"{algo}_{seed}"
    task = TASKS[name]
    settings = [
        *task.offline,
        *task.own.get(algo, ()),
        "estimate=false",
        "evaluate_episodes=100",
        "log_every=null",
        *changes,
    ]
    words = ["--task", name, "--algo", algo, "--seed", seed, "--run-dir", folder_of_run]
    run("offline", "train", folder / f"data_{seed}", *words, *options(settings))
    return json.loads((folder_of_run / "summary.json").read_text())


def main() -> None:
    """Learn and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="Pendulum-v1", choices=TASKS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--algo", nargs="+", default=["iql", "td3_bc"])
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    print("| task | seed | log: mean return | best tenth | algorithm | learned | rows/s |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for seed in range(args.seeds):
        with tempfile.TemporaryDirectory() as folder:
            returns = write_log(Path(folder), args.task, seed)
            best = statistics.mean(returns[: len(returns) // 10])
            for algo in args.algo:
                summary = learn(Path(folder), args.task, seed, algo, args.set)
                print(
                    f"| {args.task} | {seed} | {statistics.mean(returns):.0f} | {best:.0f} | {algo} | "
                    f"{summary['eval_return_mean']:.0f} | {summary['env_steps'] / summary['wall_time_s']:,.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
