"""How long does it take to learn a task, on 1 and on 2 ranks? Seconds until an evaluation reaches the threshold.

    python benchmarks/time_to_return.py LunarLander-v3 cartpole_dqn pendulum_sac --seeds 3

Shards are pinned, so both rank counts take the same steps and end with the same bits, which is checked: the ratio of
their times is that of their speeds, evaluations included. The rank counts take turns, seed by seed. Rows are lines of
benchmarks/rows/time_to_return.jsonl; a run that has a row is not repeated. Nothing else should run beside.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from learning import run

ROWS = Path(__file__).parent / "rows" / "time_to_return.jsonl"
RANKS = (1, 2)
KEPT = ("status", "env_steps", "eval_return_mean", "wall_time_s", "params_fingerprint")


def train(target: str, ranks: int, seed: int, changes: list[str]) -> dict:
    """Train until solved in a process of its own; returns the row of the run."""
    with tempfile.TemporaryDirectory() as folder:
        summary = run(target, ranks, seed, [f"num_shards={max(RANKS)}", *changes], Path(folder) / "run")
    return {"target": target, "changes": changes, "ranks": ranks, "seed": seed} | {name: summary[name] for name in KEPT}


def table(rows: list[dict]) -> str:
    """One line for each command: steps, seconds on each number of ranks, and their ratio."""
    lines = ["| command | seeds | solved | steps, median | 1 rank, s | 2 ranks, s | ratio |", "|---" * 7 + "|"]
    for target, *changes in dict.fromkeys((row["target"], *row["changes"]) for row in rows):
        mine = [row for row in rows if (row["target"], *row["changes"]) == (target, *changes)]
        seeds = {row["seed"]: {} for row in mine}
        for row in mine:
            seeds[row["seed"]][row["ranks"]] = row
        pairs = [tuple(of[ranks] for ranks in RANKS) for of in seeds.values() if len(of) == len(RANKS)]
        if not pairs:
            continue
        for one, two in pairs:
            assert one["params_fingerprint"] == two["params_fingerprint"], (target, one["seed"])
        seconds = np.array([[run["wall_time_s"] for run in pair] for pair in pairs])
        ratios = seconds[:, 0] / seconds[:, 1]
        alone, both = np.median(seconds, 0)
        solved = sum(one["status"] == "solved" for one, _ in pairs)
        lines.append(
            f"| `{' --set '.join([target, *changes])}` | {len(pairs)} | {solved} "
            f"| {np.median([one['env_steps'] for one, _ in pairs]):,.0f} | {alone:.1f} | {both:.1f} "
            f"| {np.median(ratios):.2f} ({ratios.min():.2f}-{ratios.max():.2f}) |"
        )
    return "\n".join(lines)


def main() -> None:
    """Train what has no row yet, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="tasks or recipes; none: only the table")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], help="a change of a setting, NAME=VALUE")
    args = parser.parse_args()
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []
    known = {json.dumps([row[name] for name in ("target", "changes", "ranks", "seed")]) for row in rows}
    for target in args.targets:
        for seed in range(args.seeds):
            for ranks in RANKS:
                if json.dumps([target, args.set, ranks, seed]) in known:
                    continue
                row = train(target, ranks, seed, args.set)
                rows.append(row)
                with ROWS.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(f"{target} ranks={ranks} seed={seed}: {row['status']} in {row['wall_time_s']:.1f} s", flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
