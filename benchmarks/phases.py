"""Are the phases of a run's time complete, are they attributed to the right phase, and what do they cost?

    python benchmarks/phases.py
    python benchmarks/phases.py --works ppo-torch sac-jax --updates 300

Each work is trained in turn as it is, and with a wait for the device and for all arrays in flight at the end of
learning. Where the two disagree, a phase counts time of another one: frameworks return before their results are ready.

    sum     seconds of all phases against those of the clock, largest difference over ranks; promised under 2%
    shift   largest difference of a phase's share of the time between the two; noise of the machine included
    cost    changes of phase times what one takes, measured after training; promised under 1%
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import measure

from lockstep import Run, World, spawn
from lockstep.distributed.timers import LEARN, PHASE, PHASES, Timers
from lockstep.run import override

_SETTINGS = {"evaluate_every": None, "evaluate_episodes": 4, "stop_when_solved": False}


def works() -> dict[str, tuple[Run, int]]:
    """The runs by name, and the number of ranks of each."""
    ppo = Run(task="CartPole-v1", num_envs=8)
    dqn = override(ppo, {"algo": "dqn", "learning_starts": 500, "num_envs": 8})
    sac = Run(task="Pendulum-v1", algo="sac", num_envs=8)
    sac = override(sac, {"learning_starts": 500, "hidden": [64, 64]})
    on_device = override(ppo, {"ml_framework": "jax", "task": "jax/CartPole-v1"})
    tensors = Run(task="lockstep/Cartpole-v0", num_envs=256)
    runs = {"ppo": ppo, "dqn": dqn, "sac": sac}
    found = {f"{name}-torch": (run, 1) for name, run in runs.items()}
    found |= {f"{name}-jax": (override(run, {"ml_framework": "jax"}), 1) for name, run in runs.items()}
    found |= {"ppo-torch-tensors": (tensors, 1), "ppo-jax-device": (on_device, 1)}
    return found | {f"{name}-2": (run, 2) for name, (run, _) in found.items()}


def train(rank: int, run: Run, folder: str, wait: bool) -> dict[str, Any]:
    """One rank of a run: the number of changes of phase, and what one takes."""
    from lockstep.launch.train import _loop_of

    session_class, learn = _loop_of(run)
    changes, enter = [0], Timers.enter
    ready = _waiter(run) if wait else lambda: None

    def counted(timers: Timers, phase: int) -> int:
        changes[0] += 1
        if timers.row[PHASE] == LEARN:  # other phases end with numpy arrays of the host
            ready()
        return enter(timers, phase)

    Timers.enter = counted
    with session_class(run, World.from_environment(), run_dir=Path(folder)) as session:
        learn(session)
    Timers.enter = enter
    return {"changes": changes[0], "each_s": _change_s(session.timers)}


def _change_s(timers: Timers) -> float:
    calls, start = 100_000, time.perf_counter()
    for _ in range(calls):
        timers.enter(0)
    return (time.perf_counter() - start) / calls


def _waiter(run: Run) -> Any:
    """A function that returns when the device has computed everything."""
    if run.ml_framework == "torch":
        import torch

        return torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    import threading

    import jax

    main = threading.main_thread()

    def wait() -> None:
        if threading.current_thread() is main:
            jax.block_until_ready([array for array in jax.live_arrays() if not array.is_deleted()])

    return wait


def one(name: str, updates: int, wait: bool) -> dict[str, Any]:
    """Train a work, and read its phases from the log lines of all ranks, from the fifth part of the run on."""
    run, ranks = works()[name]
    total_steps = updates * run.num_envs * run.algorithm.num_steps
    run = override(run, {**_SETTINGS, "total_steps": total_steps, "log_every": max(total_steps // 10, 1)})
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        ranks_told = spawn(train, ranks, (run, str(run_dir), wait))
        lines = [json.loads(line) for line in (run_dir / "ranks.jsonl").read_text().splitlines()]
        summary = json.loads((run_dir / "summary.json").read_text())
    first, last = lines[len(lines) // 5], lines[-1]
    seconds = last["time_s"] - first["time_s"]
    of_ranks = [
        {phase: last["phases_s"][phase][i] - first["phases_s"][phase][i] for phase in PHASES}
        for i in range(len(last["phases_s"]["env"]))
    ]
    sums = [sum(spent.values()) / seconds for spent in of_ranks]
    return {
        "sum": max(sums, key=lambda value: abs(value - 1)),
        "shares": {phase: sum(one[phase] for one in of_ranks) / len(of_ranks) / seconds for phase in PHASES},
        "update_ms": 1e3 * seconds / (last["step"] - first["step"]) * run.num_envs * run.algorithm.num_steps,
        "cost": max(told["changes"] * told["each_s"] / summary["wall_time_s"] for told in ranks_told),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", nargs="*", default=list(works()), choices=list(works()))
    parser.add_argument("--updates", type=int, help="of each run (default: 60, with a replay buffer 600)")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--one", choices=["plain", "waits"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        (name,) = args.works
        updates = args.updates or (60 if name.startswith("ppo") else 600)
        print(json.dumps(one(name, updates, args.one == "waits")))
        return
    rows = []
    for name in args.works:
        found: dict[str, list[dict[str, Any]]] = {"plain": [], "waits": []}
        for _ in range(args.repetitions):
            for arm, measured in found.items():
                measured.append(_in_a_process(name, arm, args.updates))
        shares = {arm: _medians([one["shares"] for one in measured]) for arm, measured in found.items()}
        shift = max(PHASES, key=lambda phase: abs(shares["plain"][phase] - shares["waits"][phase]))
        worst = max((one["sum"] for one in found["plain"]), key=lambda value: abs(value - 1))
        rows.append([
            name,
            f"{median(one['update_ms'] for one in found['plain']):.3g}",
            f"{100 * (worst - 1):+.3f}",
            f"{100 * (shares['waits'][shift] - shares['plain'][shift]):+.1f} {shift}",
            f"{100 * median(one['cost'] for one in found['plain']):.2f}",
            ", ".join(f"{phase} {100 * share:.0f}" for phase, share in shares["plain"].items() if share > 0.005),
        ])  # fmt: skip
        print(rows[-1], file=sys.stderr, flush=True)
    print(measure.machine())
    print()
    print(measure.table(["work", "ms per update", "sum, % off", "shift, points", "cost, %", "% of the time"], rows))


def _in_a_process(name: str, arm: str, updates: int | None) -> dict[str, Any]:
    command = [sys.executable, __file__, "--works", name, "--one", arm]
    command += ["--updates", str(updates)] if updates else []
    done = subprocess.run(command, env=os.environ | measure.ONE_THREAD, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nended with code {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _medians(shares: list[dict[str, float]]) -> dict[str, float]:
    return {phase: median(one[phase] for one in shares) for phase in PHASES}


if __name__ == "__main__":
    main()
