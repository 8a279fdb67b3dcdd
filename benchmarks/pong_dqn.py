"""DQN on Pong, 2 ranks against 1: environment steps per second, learning included, and where the time goes.

    python benchmarks/pong_dqn.py
    python benchmarks/pong_dqn.py --only parts            # where the time of a gradient step goes
    python benchmarks/pong_dqn.py --encoder wide --only ranks --steps 1200

The Nature CNN, plain Q-learning, a gradient step on 32 transitions for every 4 environment steps, the Huber loss, Adam,
the gradient's norm clipped. `lockstep bench pong_dqn` compares with Stable-Baselines3. One process plays 4
environments, one step of each between two gradient steps, and has one thread and one core. Two ranks do the work of one
together: 2 environments and 16 transitions each. Each repetition is a fresh process; only its steady state counts.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from statistics import mean, median
from typing import Any

import measure
from overhead import Clock

from lockstep import Run, World, spawn
from lockstep.recipes import pong_small
from lockstep.run import override

CORE = {min(os.sched_getaffinity(0))}
LEARNING_STARTS = 1000
WARM_UP = 1200
SETTINGS = {
    "num_envs": 4,
    "log_every": WARM_UP,
    "checkpoint_every": "null",
    "algorithm.num_steps": 1,
    "algorithm.updates_per_step": 0.25,
    "algorithm.batch_size": 32,
    "algorithm.learning_starts": LEARNING_STARTS,
    "algorithm.capacity": 20_000,
    "algorithm.n_step": 1,
    "algorithm.double": "false",
    "algorithm.dueling": "false",
    "algorithm.target_update_every": 250,
    "algorithm.epsilon_end": 0.01,
    "algorithm.epsilon_steps": 500,
}
PARTS = {
    "draw 32 transitions": "draw",
    "forward passes and loss": "loss",
    "backward pass": "backward",
    "sum over ranks": "sum",
    "Adam": "adam",
    "add 4 transitions": "add",
    "act in 4 environments": "act",
    "step 4 environments": "env",
    "the whole, with all else": "whole",
}


def ours(steps: int, ranks: int, encoder: str) -> float:
    """Steps per second of Lockstep, by its command."""
    settings = {**SETTINGS, "total_steps": WARM_UP + steps, "network.encoder": encoder}
    cores = CORE if ranks == 1 else None
    return measure.train("pong_small", settings, ranks=ranks, cores=cores)["steady"]


def timed(rank: int, run: Run, run_dir: str) -> dict[str, float]:
    """One rank of a run with clocks in it: milliseconds of each part of a gradient step, and of what lies between."""
    import torch

    from lockstep.distributed.timers import Timers
    from lockstep.experience.replay import Replay
    from lockstep.torch import dqn
    from lockstep.torch.adam import Adam
    from lockstep.torch.comm import Comm
    from lockstep.torch.networks import TorchActor
    from lockstep.torch.session import Session

    torch.set_num_threads(1)
    clock, found = Clock(), dict[str, Any]()
    clock.around(Replay, "sample", "draw")
    clock.around(dqn.DQN, "loss", "loss")
    clock.around(torch.Tensor, "backward", "backward")
    clock.around(Comm, "average_gradients_", "sum")
    clock.around(Adam, "step", "adam")
    clock.around(Replay, "extend", "add")
    clock.around(TorchActor, "__call__", "act")
    read = Timers.read

    def kept(self: Timers) -> dict[str, float]:
        found.update(read(self))
        return dict(found)

    Timers.read = kept
    with Session(run, World.from_environment(), run_dir=Path(run_dir)) as session:
        dqn.train(session)
    # Of the second half of the calls: the first of them warm up.
    parts = {name: 1e3 * mean(times[len(times) // 2 :]) for name, times in clock.spent.items() if times}
    return parts | {"env": 1e3 * found["env"] / session.summary["updates"]}


def split_policy(ranks: int, steps: int, encoder: str) -> dict[str, float]:
    """Milliseconds of the parts, mean over ranks; of the whole by the run's own clock."""
    settings = {name: {"null": None, "false": False}.get(str(value), value) for name, value in SETTINGS.items()}
    run = override(pong_small.recipe(), settings | {"total_steps": WARM_UP + steps, "network.encoder": encoder})
    run = override(run, {"evaluate_every": None, "evaluate_episodes": ranks})
    with tempfile.TemporaryDirectory() as folder:
        told = spawn(timed, ranks, (run, f"{folder}/run"))
        lines = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    whole = 4e3 * (lines[-1]["time_s"] - lines[0]["time_s"]) / (lines[-1]["step"] - lines[0]["step"])
    return {name: mean(one[name] for one in told) for name in told[0]} | {"whole": whole}


def speeds(args: argparse.Namespace) -> None:
    """Measure and print the table of steps per second."""
    arms = {
        "Lockstep, 1 rank": lambda: ours(args.steps, 1, args.encoder),
        "Lockstep, 2 ranks": lambda: ours(args.steps, 2, args.encoder),
    }
    found = measure.in_turn(arms, args.repetitions)
    one, rows = found["Lockstep, 1 rank"], []
    for name, speed in found.items():
        rows.append([name, f"{median(speed):.1f}", measure.ratio(speed, one)])
    head = [f"Pong, DQN, {args.encoder}, 32", "steps/s, median", "to 1 rank"]
    print(measure.table(head, rows), "\n")


def parts(args: argparse.Namespace) -> None:
    """Measure and print where the time of a gradient step goes."""
    told = {ranks: [split_policy(ranks, args.steps, args.encoder) for _ in range(args.repetitions)] for ranks in (1, 2)}
    rows = []
    for name, key in PARTS.items():
        values = [median(one[key] for one in told[ranks]) for ranks in (1, 2)]
        shares = [median(one[key] / one["whole"] for one in told[ranks]) for ranks in (1, 2)]
        rows.append([name, *(f"{v:.2f} ({100 * s:.1f}%)" for v, s in zip(values, shares, strict=True))])
    print(measure.table(["between two gradient steps, ms", "1 rank", "each of 2 ranks"], rows))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3 * WARM_UP, help="measured in each run; a multiple of 1200")
    parser.add_argument("--encoder", default="nature", help="of the network")
    parser.add_argument("--only", choices=["all", "ranks", "parts"], default="all")
    args = parser.parse_args()
    if args.steps % WARM_UP:
        parser.error(f"--steps {args.steps} is not a multiple of {WARM_UP}")
    os.environ |= measure.ONE_THREAD  # inherited by the ranks
    print(f"{measure.machine()}; {args.repetitions} repetitions of {args.steps} steps\n")
    if args.only != "parts":
        speeds(args)
    if args.only != "ranks":
        parts(args)


if __name__ == "__main__":
    main()
