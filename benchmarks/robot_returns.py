"""What do robot tasks return? Lockstep's PPO beside rl_games, skrl and rsl_rl, with the settings that a task publishes.

    python benchmarks/robot_returns.py Isaac-Cartpole --seeds 3 --ranks 1 2 --goal 4.8
    python benchmarks/robot_returns.py Isaac-Ant --num-envs 4096 --iterations 40 --trainers rl_games
    python benchmarks/robot_returns.py lockstep/Cartpole-v0 --trainers rl_games --seeds 10

Run it with an interpreter that has Isaac Lab and the libraries (`make test-isaac` makes one). For each library two
trainers: the library itself (`lockstep.workflows.NAME`) and `lockstep train --agent NAME`. A library gets `num-envs`
environments on each rank, as its scripts do; Lockstep's PPO that many on all ranks together. Both report the mean
return of the last 100 training episodes after each rollout. Rows are lines of benchmarks/rows/robots.jsonl; a run that
has a row is not repeated.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROWS = Path(__file__).parent / "rows" / "robots.jsonl"
KEY = ("task", "trainer", "settings", "ranks", "num_envs", "iterations", "seed")
"""What identifies a run."""
NO_EVALUATIONS = ("evaluate_every=null", "evaluate_episodes=1", "checkpoint_every=null", "stop_when_solved=false")
CARTPOLE_FILES = {"rl_games": "rl_games_manager_ppo_cfg.yaml", "skrl": "skrl_manager_ppo_cfg.yaml"}
"""Settings of `Isaac-Cartpole`, for `lockstep/Cartpole-v0`, which publishes none."""


def main() -> None:
    """Train what has no row yet, then print a table of the task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--trainers", nargs="+", default=["rl_games", "skrl", "rsl_rl"], help="whose settings")
    parser.add_argument("--own", action="store_true", help="train with Lockstep alone")
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--iterations", type=int, default=60, help="rollouts")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1])
    parser.add_argument("--goal", type=float, help="a return: the table has the steps until it is reached")
    args = parser.parse_args()
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []
    known = {identity(row) for row in rows}
    for seed in range(args.seeds):
        for settings in args.trainers:
            for trainer in ("lockstep",) if args.own else (settings, "lockstep"):
                for ranks in args.ranks:
                    values = (args.task, trainer, settings, ranks, args.num_envs, args.iterations, seed)
                    run = dict(zip(KEY, values, strict=True))
                    if identity(run) in known:
                        continue
                    row = run | train(run)
                    rows.append(row)
                    with ROWS.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                    print(f"{run}: {row['curve'][-1]}", file=sys.stderr, flush=True)
    print(table([row for row in rows if row["task"] == args.task], args.goal))


def identity(run: dict) -> str:
    """The key of a run or row, to compare."""
    return json.dumps([run[name] for name in KEY])


def train(run: dict) -> dict:
    """Train in processes of its own.

    Returns:
        The seconds of training; the episodes that ended; the curve: steps of all ranks, mean return of the last 100
        episodes.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        agent = agent_of(run["task"], run["settings"])
        count, iterations, seed = str(run["num_envs"]), str(run["iterations"]), str(run["seed"])
        if run["trainer"] == "lockstep":
            command = ["lockstep.train", run["task"], "--agent", agent, "--num-envs", count]
            command += ["--max-iterations", iterations, "--run-dir", str(run_dir), "--set", "log_every=1"]
            command += [word for setting in NO_EVALUATIONS for word in ("--set", setting)]
        else:
            command = [f"lockstep.workflows.{run['trainer']}", "--task", run["task"], "--num_envs", count]
            command += ["--max_iterations", iterations, "--run_dir", str(run_dir)]
            command += ["--agent", agent] if agent != run["settings"] else []
        command += ["--seed", seed, "--ranks", str(run["ranks"])]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, check=False, env=environment
        )
        if done.returncode:
            sys.exit(
                f"{' '.join(command)}\nended with code {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        metrics = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    curve = [
        [row["step"], round(row["episode/return_mean_100"], 3)] for row in metrics if "episode/return_mean_100" in row
    ]
    episodes = int(metrics[-1]["progress/episodes"])
    return {"seconds": round(metrics[-1]["time_s"], 1), "episodes": episodes, "curve": curve}


def agent_of(task: str, settings: str) -> str:
    """`--agent`: the library's name where the task publishes settings for it, else a file of the cart-pole's."""
    if not task.startswith("lockstep/"):
        return settings
    spec = importlib.util.find_spec("isaaclab_tasks")
    if spec is None or spec.origin is None or settings not in CARTPOLE_FILES:
        sys.exit(f"{task}: no settings of {settings}: Isaac Lab has files for {', '.join(CARTPOLE_FILES)}")
    return str(Path(spec.origin).parent / "core" / "cartpole" / "agents" / CARTPOLE_FILES[settings])


def table(rows: list[dict], goal: float | None) -> str:
    """A markdown table: one line for each trainer and number of ranks, over its seeds."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in KEY[:-1]), []).append(row)
    columns = [
        "settings of",
        "trainer",
        "ranks",
        "environments",
        "rollouts",
        "steps",
        "seeds",
        "last return, mean",
        "each",
    ]
    if goal is not None:
        columns.append(f"steps to {goal:g}, each")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for (_, trainer, settings, ranks, num_envs, iterations), runs in sorted(groups.items(), key=lambda one: one[0][2]):
        last = [run["curve"][-1][1] for run in runs]
        environments = num_envs * (1 if trainer == "lockstep" else ranks)
        cells = [settings, trainer, ranks, environments, iterations, f"{runs[0]['curve'][-1][0]:,}", len(runs)]
        cells += [f"{statistics.mean(last):.2f}", ", ".join(f"{value:.2f}" for value in last)]
        if goal is not None:
            cells.append(", ".join(steps_to(run["curve"], goal) for run in runs))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def steps_to(curve: list[list[float]], goal: float) -> str:
    """The steps at which the curve first reaches the goal."""
    return next((f"{step:,}" for step, value in curve if value >= goal), "never")


if __name__ == "__main__":
    main()
