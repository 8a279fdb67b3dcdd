"""What a second rank buys where learning is from logged data: rows per second at equal global batch. A markdown table.

python benchmarks/offline_scaling.py                    DQN, with and without models for estimates, batch 1024, 4096
python benchmarks/offline_scaling.py --repetitions 3 --batches 1024

Made data, 16 features, 4 actions, a 128-64 network. Both sides of a comparison run in turn, each a whole run; its speed
is that between its first line of metrics and the last before its end.
"""

import argparse
import json
import statistics
import tempfile
from functools import partial
from pathlib import Path

import measure
from offline_reader import make

ROWS, FEATURES = 500_000, 16


def speed(data: Path, ranks: int, batch: int, algo: str, estimate: bool, rows: int) -> float:
    """Rows per second of one run, once warm."""
    settings = {
        "batch_size": batch, "estimate": str(estimate).lower(), "log_every": rows // 20, "checkpoint_every": "null",
        "epochs": max(rows // ROWS, 1), "check_every": 10,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        words = [w for name, value in settings.items() for w in ("--set", f"{name}={value}")]
        start = [*measure.LOCKSTEP, "offline", "train", str(data), "--algo", algo, "--ranks", str(ranks)]
        measure.call([*start, "--run-dir", str(run_dir), *words])
        lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    first, last = lines[0], lines[-2]  # the last line has the estimates, too
    return (last["step"] - first["step"]) / (last["time_s"] - first["time_s"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--algos", nargs="+", default=["dqn"])
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows learned from in a run")
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "discrete"
        make(data, "discrete", FEATURES, ROWS)
        for algo in args.algos:
            for batch in args.batches:
                for estimate in (False, True):
                    of = partial(speed, data, batch=batch, algo=algo, estimate=estimate, rows=args.rows)
                    arms = {f"{ranks} ranks": partial(of, ranks=ranks) for ranks in (1, 2)}
                    found = measure.in_turn(arms, args.repetitions)
                    one, two = found["1 ranks"], found["2 ranks"]
                    middle = [f"{statistics.median(speeds):,.0f}" for speeds in (one, two)]
                    lines.append([algo, batch, "yes" if estimate else "no", *middle, measure.ratio(two, one)])
    print(measure.machine())
    head = ["algorithm", "batch", "models for estimates", "rows/s, 1 rank", "rows/s, 2 ranks", "2 ranks / 1 rank"]
    print(measure.table(head, lines))


if __name__ == "__main__":
    main()
