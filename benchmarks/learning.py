"""Does it learn? Each recipe on several seeds and numbers of ranks; prints a markdown table.

python benchmarks/learning.py cartpole --seeds 10 --ranks 1 2
python benchmarks/learning.py pendulum --seeds 5 --ranks 1 --set num_envs=16
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def train(recipe: str, ranks: int, seed: int, changes: list[str]) -> dict:
    """The summary of one training in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lockstep.train", recipe, "--ranks", str(ranks), "--seed", str(seed)]
        command += ["--run-dir", f"{folder}/run", *(word for change in changes for word in ("--set", change))]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads((Path(folder) / "run" / "summary.json").read_text())


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    print("| recipe | ranks | seeds | solved | evaluation return, lowest - median ", end="")
    print("| steps, median - most | seconds, median |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for ranks in args.ranks:
        runs = [train(args.recipe, ranks, seed, args.set) for seed in range(args.seeds)]
        returns = [run["eval_return_mean"] for run in runs]
        steps = [run["env_steps"] for run in runs]
        print(
            f"| {args.recipe} | {ranks} | {args.seeds} | {sum(run['status'] == 'solved' for run in runs)} "
            f"| {min(returns):.1f} - {statistics.median(returns):.1f} "
            f"| {statistics.median(steps):,.0f} - {max(steps):,} "
            f"| {statistics.median(run['wall_time_s'] for run in runs):.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
