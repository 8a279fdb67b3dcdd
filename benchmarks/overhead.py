"""What the promises cost: watch, proof of sync and numbering while training; checkpoints and resume.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --gigabytes 1 --repetitions 3

The first table is measured inside: clocks around the calls themselves, in a run of PPO on CartPole-v1 on 2 ranks, as
parts of the time of its loop. (The difference between two runs, with and without, drowns in noise.) The second keeps a
shard state of the size asked for, spread over 2 ranks.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import measure
import numpy as np

from lockstep import Run, World, spawn
from lockstep.envs.toy_tasks import Corridor
from lockstep.recipes import cartpole
from lockstep.run import override

RANKS = 2


class Bulky(Corridor):
    """A toy with `megabytes` of state, as a replay would have; 1 MB of it changes with every step."""

    def __init__(self, num_envs: int, megabytes: int = 1) -> None:
        super().__init__(num_envs)
        self.bulk = np.zeros((megabytes, 1 << 20), np.uint8)
        self.bulk[:] = np.arange(megabytes, dtype=np.uint8)[:, None]
        self.turn = 0

    def restore(self, state: Any) -> np.ndarray:
        self.bulk[:] = state["bulk"]
        return super().restore(state)

    def state(self) -> dict[str, Any]:
        return super().state() | {"bulk": self.bulk}  # itself: who takes a checkpoint copies

    def step(self, action: np.ndarray) -> Any:
        self.turn = (self.turn + 1) % len(self.bulk)
        self.bulk[self.turn] += 1
        return super().step(action)


class Clock:
    """Seconds spent in functions of this process, by name."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {}

    def around(self, owner: type, method: str, name: str) -> None:
        """Time each call of a method, on the thread that makes it."""
        original: Callable[..., Any] = getattr(owner, method)
        spent = self.spent.setdefault(name, [])

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                spent.append(time.perf_counter() - start)

        setattr(owner, method, timed)


def train(rank: int, run: Run, run_dir: str, resume: bool = False) -> dict[str, Any]:
    """One rank of a run, with clocks in it."""
    from lockstep.distributed.shared_memory import Segment
    from lockstep.distributed.watch import Watch
    from lockstep.session.checkpoints import Checkpoints
    from lockstep.torch import ppo
    from lockstep.torch.session import Session

    clock, watched = Clock(), []
    clock.around(Session, "_check_in_sync", "proof of sync")
    clock.around(Segment, "arrive", "numbering")
    clock.around(Segment, "ranks_elsewhere", "numbering")
    clock.around(Checkpoints, "_take", "take")
    clock.around(Checkpoints, "take_if_due", "take_if_due")
    clock.around(Checkpoints, "checkpoint_last", "checkpoint_last")
    clock.around(Checkpoints, "begin", "begin")
    monitor = Watch._monitor

    def timed_monitor(self: Watch) -> None:
        monitor(self)
        watched.append(time.thread_time())

    Watch._monitor = timed_monitor
    where = {"resume": Path(run_dir)} if resume else {"run_dir": Path(run_dir)}
    with Session(run, World.from_environment(), **where) as session:
        ppo.train(session)
    beats = session.timers
    start, calls = time.perf_counter(), 100_000
    for _ in range(calls):
        beats.enter(0)
    per_beat = (time.perf_counter() - start) / calls
    return {"summary": session.summary, "spent": clock.spent, "watch": watched[0], "per_beat": per_beat}


def while_training(steps: int, folder: Path) -> list[tuple[str, float]]:
    """Parts of the loop's time, mean over ranks."""
    every = {"total_steps": steps, "stop_when_solved": False, "evaluate_every": None, "evaluate_episodes": 2}
    run = override(cartpole.recipe(), {**every, "checkpoint_every": 50_000})
    told = spawn(train, RANKS, (run, str(folder / "cartpole")))
    wall = told[0]["summary"]["wall_time_s"]
    mean = {name: sum(sum(one["spent"][name]) for one in told) / RANKS for name in told[0]["spent"]}
    beats = 2 * run.algorithm.num_steps * told[0]["summary"]["updates"]  # two phases in each step of a rollout
    parts = [
        ("watch: its thread", sum(one["watch"] for one in told) / RANKS / wall),
        ("watch: heartbeats", beats * told[0]["per_beat"] / wall),
        ("proof of sync (check_every=10)", mean["proof of sync"] / wall),
        ("numbering and tags of collectives", mean["numbering"] / wall),
    ]
    parts.append(("together", sum(part for _, part in parts)))
    return [*parts, ("checkpoints (checkpoint_every=50000)", mean["take_if_due"] / wall)]


def of_a_large_state(megabytes: int, folder: Path) -> dict[str, float]:
    """Seconds that training waits for a checkpoint, that writing takes beside it, and that resuming takes."""
    run = Run(
        task=f"{Path(__file__).resolve()}:Bulky",
        num_envs=16,
        num_shards=RANKS,
        total_steps=16 * 128 * 40,
        checkpoint_every=16 * 128 * 20,
        evaluate_every=None,
        evaluate_episodes=2,
        stop_when_solved=False,
    )
    run = override(run, {"env.kwargs.megabytes": megabytes // RANKS})
    told = spawn(train, RANKS, (run, str(folder / "bulky")))
    longer = override(run, {"total_steps": 16 * 128 * 41})
    again = spawn(train, RANKS, (longer, str(folder / "bulky"), True))
    return {
        "waits": max(one["spent"]["take"][0] for one in told),
        "written": max(one["spent"]["checkpoint_last"][0] for one in told),
        "resumed": max(one["spent"]["begin"][0] for one in again),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300_000, help="of the run on CartPole-v1")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of shard state, all ranks together")
    args = parser.parse_args()

    def in_folder(what: Callable[[int, Path], Any], size: int) -> Any:
        folder = Path(tempfile.mkdtemp())
        try:
            return what(size, folder)
        finally:
            shutil.rmtree(folder)

    shares = [in_folder(while_training, args.steps) for _ in range(args.repetitions)]
    seconds = [in_folder(of_a_large_state, int(args.gigabytes * 1000)) for _ in range(args.repetitions)]
    rows = []
    for i, (name, _) in enumerate(shares[0]):
        percent = [100 * one[i][1] for one in shares]
        promised = {"together": "under 2", "proof of sync (check_every=10)": "under 1"}.get(name, "")
        promised = promised or ("under 5" if name.startswith("checkpoints") else "")
        rows.append([name, f"{median(percent):.2f} ({min(percent):.2f}-{max(percent):.2f})", promised])
    print(measure.machine())
    print()
    print(measure.table(["PPO, CartPole-v1, 2 ranks", "% of the loop's time, median (range)", "promised"], rows))
    print()
    names = {
        "waits": ("training waits for a checkpoint", "under 1"),
        "written": ("the last checkpoint, waited for until it is on the disk", ""),
        "resumed": ("resume: read, verify, restore", "under 10"),
    }
    rows = []
    for key, (name, promised) in names.items():
        values = [one[key] for one in seconds]
        rows.append([name, f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})", promised])
    print(
        measure.table([f"{args.gigabytes:g} GB of shard state, 2 ranks", "seconds, median (range)", "promised"], rows)
    )


if __name__ == "__main__":
    main()
