"""Does it learn from somebody's log? CartPole, from 100 episodes of a mediocre policy; prints a markdown table.

python benchmarks/offline_learning.py --seeds 5 --ranks 1 2
python benchmarks/offline_learning.py --seeds 5 --algo bc

The log: push to the side to which the pole leans, which alone keeps it up for 42 steps, and in 4 of 10 steps push
anywhere. No episode is an expert's. Every seed has a log of its own.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import gymnasium
import numpy as np

from lockstep.data.logs.writer import LogWriter
from lockstep.data.prepare import PrepareOptions, prepare_dataset
from lockstep.world import stream, stream_seed

EPISODES, LIMIT, RANDOM = 100, 200, 0.4
NORM = {"min_stddev": 0.01, "skip_quantiles": True}
"""Numbers of CartPole are small, and what is beyond those in the log matters."""
SETTINGS = ("batch_size=512", "target_rate=0.01", "epochs=300", "estimate=false")


def write_log(path: Path, seed: int) -> list[int]:
    """Log the episodes of the mediocre policy; returns their lengths."""
    env = gymnasium.make("CartPole-v1", max_episode_steps=LIMIT)
    draws, lengths = stream(seed, "mediocre policy"), list[int]()
    with LogWriter(path) as log:
        for episode in range(EPISODES):
            observation, _ = env.reset(seed=stream_seed(seed, "episode", episode))
            rows, ended = list[dict[str, object]](), False
            while not ended:
                lean = int(observation[2] > 0)
                action = int(draws.integers(2)) if draws.random() < RANDOM else lean
                row = {
                    "mdp_id": str(episode),
                    "sequence_number": len(rows),
                    "state_features": {str(i): float(x) for i, x in enumerate(observation)},
                    "action": str(action),
                    "action_probability": 1 - RANDOM / 2 if action == lean else RANDOM / 2,
                    "possible_actions": ["0", "1"],
                }
                observation, reward, terminated, truncated, _ = env.step(np.int64(action))
                rows.append(row | {"reward": float(reward), "terminated": terminated, "truncated": truncated})
                ended = terminated or truncated
            log.write(rows)
            lengths.append(len(rows))
    return lengths


def learn(folder: Path, seed: int, ranks: int, algo: str, changes: list[str]) -> tuple[list[int], dict]:
    """Lengths of the logged episodes, and the summary of the run that learned from them."""
    log, data, run_dir = folder / f"log_{seed}.jsonl", folder / f"data_{seed}", folder / f"run_{seed}_{ranks}"
    log.unlink(missing_ok=True)
    lengths = write_log(log, seed)
    prepare_dataset([log], data, PrepareOptions(max_episode_steps=LIMIT, norm=NORM), show=lambda line: None)
    words = ["offline", "train", str(data), "--task", "CartPole-v1", "--algo", algo, "--ranks", str(ranks)]
    settings = (*SETTINGS, f"env.max_episode_steps={LIMIT}", "stop_when_solved=false", *changes)
    words += ["--seed", str(seed), "--run-dir", str(run_dir), *(w for change in settings for w in ("--set", change))]
    done = subprocess.run([sys.executable, "-m", "lockstep.cli", *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return lengths, json.loads((run_dir / "summary.json").read_text())


def main() -> None:
    """Learn and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--algo", default="dqn")
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    print("| algorithm | ranks | log's mean return, lowest - highest | learned, each seed | rows/s, median |")
    print("|---|---|---|---|---|", flush=True)
    for ranks in args.ranks:
        with tempfile.TemporaryDirectory() as folder:
            found = [learn(Path(folder), seed, ranks, args.algo, args.set) for seed in range(args.seeds)]
        logged = [statistics.mean(lengths) for lengths, _ in found]
        learned = ", ".join(f"{summary['eval_return_mean']:.1f}" for _, summary in found)
        speed = statistics.median(summary["env_steps"] / summary["wall_time_s"] for _, summary in found)
        print(
            f"| {args.algo} | {ranks} | {min(logged):.0f} - {max(logged):.0f} | {learned} | {speed:,.0f} |", flush=True
        )


if __name__ == "__main__":
    main()
