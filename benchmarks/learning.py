"""Does it learn? Train a task, recipe or file on several seeds, keep a row of each run, tabulate and draw the rows.

    python benchmarks/learning.py Hopper-v5 --seeds 5                    # the plain command, with its defaults
    python benchmarks/learning.py cartpole --seeds 10 --ranks 1 2 --set num_shards=2
    python benchmarks/learning.py Hopper-v5 --seeds 3 --set algo=sac --set total_steps=300000 --library sb3
    python benchmarks/learning.py --table                                # train nothing; from the rows there are

Rows are lines of benchmarks/rows/learning.jsonl. A run that has a row is not repeated, so an interrupted command can be
repeated. The tables are written between the marks of docs/results/learning.md, and the curves of each task to
docs/pictures/learning. `--library sb3` trains Stable-Baselines3 for as many steps, with the settings of RL Baselines3
Zoo, in the environment of `lockstep bench`, which is installed if it is missing; `sbx` is its version in JAX. If its
SAC or TD3 was cut off, it continues where it was saved last, in .bench/learning.
"""

import argparse
import json
import tempfile
from pathlib import Path

import learning_compared
import learning_curves
import measure
import numpy as np

from lockstep.cli.bench.environments import python_of
from lockstep.record.score_statistics import summarize

DOCS = Path(__file__).parent.parent / "docs"
RESULTS = DOCS / "results"
ROWS = Path(__file__).parent / "rows" / "learning.jsonl"
BEGIN = "<!-- table of benchmarks/{}.py -->"
END = "<!-- end of the table -->"
KEY = ("target", "ranks", "seed", "changes", "library")
"""What identifies a run. Rows without a library are Lockstep's."""
TITLES = {"sb3": "Stable-Baselines3", "sbx": "sbx"}
BENCH = Path(__file__).parent.parent / ".bench"
"""The environments of `lockstep bench`."""


def read_rows(path: Path) -> list[dict]:
    """All rows of the file; none if it does not exist."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [{"library": "lockstep", **json.loads(line)} for line in lines]


def run(target: str, ranks: int, seed: int, changes: list[str], run_dir: Path) -> dict:
    """Train in a process of its own; returns the summary of the run."""
    command = [*measure.LOCKSTEP, "train", target, "--ranks", str(ranks), "--seed", str(seed)]
    command += ["--run-dir", str(run_dir), *(word for change in changes for word in ("--set", change))]
    measure.call(command)
    return json.loads((run_dir / "summary.json").read_text())


def train(target: str, ranks: int, seed: int, changes: list[str]) -> dict:
    """Train in a process of its own; returns the row of the run."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        summary = run(target, ranks, seed, changes, run_dir)
        evaluations = [json.loads(line) for line in (run_dir / "evaluations.jsonl").read_text().splitlines()]
    kept = ("task", "algo", "ml_framework", "status", "env_steps", "eval_return_mean", "eval_episodes", "wall_time_s")
    return {
        **dict(zip(KEY, (target, ranks, seed, changes, "lockstep"), strict=True)),
        **{name: summary[name] for name in kept},
        "versions": summary["versions"],
        "curve": [[e["step"], round(float(np.mean(e["returns"])), 2)] for e in evaluations],
    }


def train_sb3(library: str, target: str, seed: int, changes: list[str]) -> dict:
    """Train Stable-Baselines3 or sbx on one rank; of `changes`, it follows `algo` and `total_steps`."""
    settings = dict(change.split("=", 1) for change in changes)
    python, script = python_of(library, BENCH), Path(__file__).parent / "learning_of_sb3.py"
    run = (target, settings["algo"], str(seed), settings["total_steps"])
    command = [str(python), str(script), *run, "--keep", str(BENCH / "learning" / "-".join([library, *run]))]
    result = json.loads(measure.call(command).splitlines()[-1])
    key = dict(zip(KEY, (target, 1, seed, changes, library), strict=True))
    ml_framework = "jax" if library == "sbx" else "torch"
    return {**key, "task": target, "algo": settings["algo"], "ml_framework": ml_framework, "status": "done", **result}


def table(rows: list[dict]) -> str:
    """A markdown table: one line for each command, over its seeds."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        backend = row["ml_framework"] if row["library"] == "lockstep" else TITLES[row["library"]]
        command = (row["target"], row["algo"], backend, row["ranks"], *row["changes"])
        groups.setdefault(command, []).append(row)
    columns = ("command", "algorithm, backend", "ranks", "steps", "seeds", "IQM of the last evaluation")
    columns += ("95% interval", "lowest - highest")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for (target, algo, backend, ranks, *changes), runs in sorted(groups.items()):
        scores = [run["eval_return_mean"] for run in runs]
        found = summarize(scores)
        shown = "-" if found.interval is None else f"{found.interval[0]:,.1f} - {found.interval[1]:,.1f}"
        others = [change for change in changes if not change.startswith("ml_framework=")]
        steps = max(run["env_steps"] for run in runs)
        lines.append(
            f"| `{' --set '.join([target, *others])}` | {algo}, {backend} | {ranks} | {steps:,} | {len(runs)} "
            f"| {found.iqm:,.1f} | {shown} | {min(scores):,.1f} - {max(scores):,.1f} |"
        )
    return "\n".join(lines)


def write_table(path: Path, script: str, lines: str) -> None:
    """Replace what is between the marks of this script's table on the page."""
    text, begin = path.read_text(), BEGIN.format(script)
    before, mark, rest = text.partition(begin)
    after = rest[rest.index(END) :]
    path.write_text(f"{before}{mark}\n{lines}\n{after}")


def main() -> None:
    """Train what has no row yet, then write the table and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", help="a task, recipe or file, as of `lockstep train`")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1])
    parser.add_argument("--set", action="append", default=[], help="a change of a setting, NAME=VALUE")
    parser.add_argument("--library", choices=["lockstep", *TITLES], default="lockstep", help="what trains")
    parser.add_argument("--rows", type=Path, default=ROWS, help="the file of rows")
    parser.add_argument("--table", action="store_true", help="train nothing")
    args = parser.parse_args()
    if args.target is None and not args.table:
        parser.error("name a task, a recipe or a file, or say --table")
    if args.library in TITLES and not {"algo", "total_steps"} <= {change.partition("=")[0] for change in args.set}:
        parser.error(f"--library {args.library} needs --set algo=ppo|sac|td3 and --set total_steps=N")
    if args.library in TITLES and args.ranks != [1]:
        parser.error(f"--library {args.library} trains on one rank; leave out --ranks")
    known = {json.dumps([row[name] for name in KEY]) for row in read_rows(args.rows)}
    for seed in range(args.seeds if args.target else 0):
        for ranks in args.ranks:
            if json.dumps([args.target, ranks, seed, args.set, args.library]) in known:
                continue
            if args.library in TITLES:
                row = train_sb3(args.library, args.target, seed, args.set)
            else:
                row = train(args.target, ranks, seed, args.set)
            with args.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{args.target} ranks={ranks} seed={seed}: {row['eval_return_mean']:.1f}", flush=True)
    rows = read_rows(args.rows)
    print(table(rows))
    if args.rows == ROWS:
        write_table(RESULTS / "learning.md", "learning", table(rows))
        write_table(RESULTS / "learning.md", "learning_compared", learning_compared.table(rows, TITLES))
        learning_curves.write_pictures(rows, DOCS / "pictures" / "learning", TITLES)


if __name__ == "__main__":
    main()
