"""What ranks buy and what exactness costs: environment steps per second of PPO on CartPole-v1.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --only "weak scaling" --repetitions 15

Each comparison runs its two sides in turn. Global counts of work are equal on both sides, except for weak scaling,
where two ranks have twice the environments of one. Default settings otherwise: 128 steps, 4 epochs x 4 minibatches,
2x64 tanh.
"""

import argparse
from statistics import median

import measure

SIDES = {
    "1 rank, 8 envs": {"ranks": 1, "num_envs": 8},
    "2 ranks, 16 envs": {"ranks": 2, "num_envs": 16},
    "4 ranks, 16 envs": {"ranks": 4, "num_envs": 16},
    "2 ranks, 1024 envs": {"ranks": 2, "num_envs": 1024},
    "4 ranks, 1024 envs": {"ranks": 4, "num_envs": 1024},
    "2 ranks, 256 envs": {"ranks": 2, "num_envs": 256},
    "4 ranks, 256 envs": {"ranks": 4, "num_envs": 256},
    "2 ranks, 16 envs, num_shards=2": {"ranks": 2, "num_envs": 16, "num_shards": 2},
    "1 rank, 8 envs, num_shards=4": {"ranks": 1, "num_envs": 8, "num_shards": 4},
    "1 rank, 64 envs": {"ranks": 1, "num_envs": 64},
    "1 rank, 64 envs, num_shards=4": {"ranks": 1, "num_envs": 64, "num_shards": 4},
}
# What is compared, side A, side B, the least A/B that we promise.
COMPARISONS = [
    ("weak scaling", "2 ranks, 16 envs", "1 rank, 8 envs", 1.7),
    ("more ranks than cores", "4 ranks, 1024 envs", "2 ranks, 1024 envs", 0.8),
    ("more ranks than cores, less work", "4 ranks, 256 envs", "2 ranks, 256 envs", 0.8),
    ("more ranks than cores, tiny work", "4 ranks, 16 envs", "2 ranks, 16 envs", 0.8),
    ("pinned, shards == ranks", "2 ranks, 16 envs, num_shards=2", "2 ranks, 16 envs", 0.95),
    ("pinned, 4 shards on a rank", "1 rank, 8 envs, num_shards=4", "1 rank, 8 envs", 0.35),
    ("pinned, 4 shards on a rank", "1 rank, 64 envs, num_shards=4", "1 rank, 64 envs", 0.6),
]
WARM_UP_UPDATES = 5


def speed(side: str, steps: int) -> float:
    """Steps per second once warm."""
    settings = dict(SIDES[side])
    ranks = settings.pop("ranks")
    rollout = settings["num_envs"] * 128
    updates = max(steps // rollout, 20) // WARM_UP_UPDATES * WARM_UP_UPDATES
    settings |= {"total_steps": (WARM_UP_UPDATES + updates) * rollout, "log_every": WARM_UP_UPDATES * rollout}
    return measure.train("CartPole-v1", settings, ranks=ranks)["steady"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--steps", type=int, default=200_000, help="of each run; at least 20 updates")
    parser.add_argument("--only", default="", help="comparisons whose name contains this")
    args = parser.parse_args()

    rows = []
    for name, a, b, promised in COMPARISONS:
        if args.only not in name:
            continue
        speeds = measure.in_turn({s: lambda s=s: speed(s, args.steps) for s in (a, b)}, args.repetitions)
        medians = [f"{side} ({median(speeds[side]):.0f}/s)" for side in (a, b)]
        rows.append([name, *medians, measure.ratio(speeds[a], speeds[b]), promised])
    print(f"{measure.machine()}; {args.repetitions} repetitions\n")
    print(measure.table(["", "A", "B", "A/B, median (range)", "promised, at least"], rows))


if __name__ == "__main__":
    main()
