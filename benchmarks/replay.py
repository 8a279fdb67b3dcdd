"""What a replay costs: room, adding, drawing, checkpoints. Prints a markdown table of medians.

python benchmarks/replay.py                                  100 000 Pong frames, 8 environments, draws of 32
python benchmarks/replay.py --capacity 1000000 --path /tmp/replay
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measure import machine, table

from lockstep.envs.spec import ActionSpec, EnvSpec
from lockstep.experience.memory import format_bytes, replay_bytes
from lockstep.experience.replay import Replay
from lockstep.record import checkpoint
from lockstep.record.checkpoint_writer import CheckpointWriter
from lockstep.world import World, stream

PONG = EnvSpec(
    4 * 84 * 84, ActionSpec("discrete", (6,)), "next_step", separately_seedable=True, image=(4, 84, 84), frames=4
)
REPLAYS = {
    "uniform, 1 step": {"n_step": 1, "prioritized": False},
    "prioritized, 3 steps": {"n_step": 3, "prioritized": True},
}
CHECKPOINT = ("first stall", "stall", "write", "read", "restore")


def seconds(call: Callable[[], object], repetitions: int = 1) -> float:
    """The median time of a call."""
    times = []
    for _ in range(repetitions):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def fill(replay: Replay, num_envs: int, steps: int) -> float:
    """Add noise, with an end now and then; the median time of a step."""
    draws = stream(0, "benchmark")
    shown = draws.integers(256, size=(64, num_envs, *PONG.observation_shape), dtype=np.uint8)
    first = np.zeros_like(shown[0])
    first[:, -1] = 1
    replay.begin(first)
    action, reward, no = np.zeros(num_envs, int), np.zeros(num_envs, np.float32), np.zeros(num_envs, bool)
    times, ended = [], no
    for step in range(steps):
        observation = shown[step % 64]
        if ended.any():  # a first observation stacks on zeros
            observation = observation.copy()
            observation[ended, :-1] = 0
        ended = draws.random(num_envs) < 1e-3
        began = time.perf_counter()
        replay.add(action, reward, ended, no, observation, None)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def checkpoints(replay: Replay, fresh: Callable[[], Replay]) -> dict[str, float]:
    """Seconds that training waits, that writing takes beside it, and that a resumed run reads."""
    with tempfile.TemporaryDirectory() as folder:
        warnings: list[str] = []
        keeper = CheckpointWriter(Path(folder), World(), lambda value, tag: [value], warnings.append, 1)
        keeper.prepare({}, {0: replay.state()})
        keeper.finish(lambda: None)
        told = {"first stall": 0.0}
        for step, name in enumerate(("first stall", "stall")):
            manifest = {"format": checkpoint.FORMAT, "step": step, "num_shards": 1, "world_size": 1, "run": {}}
            told[name] = seconds(lambda m=manifest: keeper.take(m, {}, {0: replay.state()}))
            told["write"] = seconds(lambda: keeper.finish(lambda: None))
        keeper.close()
        found = []
        reader = CheckpointWriter(Path(folder), World(), lambda value, tag: [value], warnings.append, 1)
        told["read"] = seconds(lambda: found.append(reader.load(None)))
        other = fresh()
        told["restore"] = seconds(lambda: other.restore(found[0][2][0]))
        reader.close()
        assert not warnings, warnings
        assert other.size == replay.size
    return told


def measured(args: argparse.Namespace, options: dict) -> list[str]:
    """A row of the table."""

    def fresh() -> Replay:
        path = args.path / "shard_0.frames" if args.path else None
        return Replay(PONG, args.num_envs, args.capacity, gamma=0.99, path=path, **options)

    began = time.perf_counter()
    replay = fresh()
    made = time.perf_counter() - began
    adding = fill(replay, args.num_envs, args.capacity * 5 // 4 // args.num_envs)
    draws = stream(0, "sample")
    index = replay.sample(args.rows, draws).index
    errors = np.abs(draws.normal(size=args.rows))
    drawing = seconds(lambda: replay.sample(args.rows, draws), 500)
    telling = seconds(lambda: replay.update_priorities(index, errors), 500)
    kept = checkpoints(replay, fresh)
    size = replay_bytes(PONG, args.num_envs, args.capacity, mapped=bool(args.path), **options)
    parts = [f"{made:.2f}", *(f"{part * 1e6:.0f}" for part in (adding, drawing, telling))]
    return [format_bytes(size), *parts, *(f"{kept[key]:.2f}" for key in CHECKPOINT)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity", type=int, default=100_000)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--rows", type=int, default=32, help="transitions drawn at once")
    parser.add_argument("--path", type=Path, help="keep observations in a file in this directory")
    args = parser.parse_args()
    header = ["replay", "memory", "made, s", f"add {args.num_envs}, us", f"draw {args.rows}, us", "priorities, us"]
    rows = [[name, *measured(args, options)] for name, options in REPLAYS.items()]
    print(f"{machine()}; {args.capacity} frames\n")
    print(table([*header, *(f"{key}, s" for key in CHECKPOINT)], rows))


if __name__ == "__main__":
    main()
