"""Isaac Lab on one core: Lockstep's PPO beside Isaac Lab's trainers, with the settings that the task publishes.

    python benchmarks/isaac.py [--task Isaac-Cartpole] [--num-envs 1024] [--iterations 60] [--rounds 3]
    python benchmarks/isaac.py --weak --agent skrl    # instead: 2 ranks of as many environments each, over 1 rank

Run it with an interpreter that has Isaac Lab, skrl, rl_games and rsl_rl (`make test-isaac` makes one). Each runs in
processes of its own, in turn, `rounds` times. The simulator alone, with random actions, bounds all of them: what
remains of a trainer's time per step is its own part.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LIBRARIES = ("rl_games", "skrl", "rsl_rl")
WHO = {"lockstep": "Lockstep", "compiled": "Lockstep, `compile=true`", "jax": "Lockstep, JAX", "library": "itself"}
SIMULATOR = """
import sys, time, torch
from lockstep.torch.envs.isaac_lab import IsaacLabEnv
task, num_envs = sys.argv[1], int(sys.argv[2])
env = IsaacLabEnv(task, num_envs=num_envs, device=torch.device("cpu"))
env.reset([0])
actions = torch.randn(700, num_envs, env.spec.action.width)
for action in actions[:60]:
    env.step(action)
start = time.perf_counter()
for action in actions[60:]:
    env.step(action)
print((time.perf_counter() - start) / 640)
"""


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="Isaac-Cartpole")
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settings", nargs="+", default=list(LIBRARIES), choices=LIBRARIES, help="of these libraries")
    parser.add_argument("--weak", action="store_true", help="measure 1 and 2 ranks of Lockstep instead")
    parser.add_argument("--agent", default="skrl", help="whose settings, with --weak")
    args = parser.parse_args()
    if args.weak:
        weak_scaling(args)
        return
    contenders = [(who, library) for library in args.settings for who in WHO]
    seconds: dict[tuple[str, str], list[float]] = {one: [] for one in contenders}
    returns: dict[tuple[str, str], list[float]] = {one: [] for one in contenders}
    simulator = []
    for _ in range(args.rounds):
        simulator.append(_simulator(args))
        for one in contenders:
            took, final = _train(args, *one)
            seconds[one].append(took)
            returns[one].append(final)
    bound = statistics.median(simulator)
    print(f"{args.task}, {args.num_envs} environments, one core, load {os.getloadavg()[0]:.1f}, {args.rounds} rounds")
    print(f"simulator alone: {1e3 * bound:.2f} ms per step of all environments")
    print("| settings | trainer | ms per step | own part, ms | steps/s | return |\n|---|---|---|---|---|---|")
    for (who, library), took in seconds.items():
        each = statistics.median(took)
        print(
            f"| {library} | {WHO[who]} | {1e3 * each:.2f} | {1e3 * (each - bound):.2f} | {args.num_envs / each:,.0f} | "
            f"{statistics.median(returns[who, library]):.2f} |"
        )


def weak_scaling(args: argparse.Namespace) -> None:
    """Measure 1 rank and 2 ranks in turn, and print their steps per second."""
    speeds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(args.rounds):
        for ranks, found in speeds.items():
            took, _ = _train(args, "lockstep", args.agent, ranks)
            found.append(args.num_envs * ranks / took)
    ratios = sorted(two / one for one, two in zip(*speeds.values(), strict=True))
    load = os.getloadavg()[0]
    print(f"{args.task}, {args.num_envs} environments on each rank, load {load:.1f}, {args.rounds} rounds")
    for ranks, found in speeds.items():
        print(f"{ranks} rank{'s' * (ranks > 1)}: {statistics.median(found):,.0f} steps/s")
    print(f"ratio: {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})")


def _simulator(args: argparse.Namespace) -> float:
    result = _run([sys.executable, "-c", SIMULATOR, args.task, str(args.num_envs)])
    return float(result.stdout.strip().splitlines()[-1])


def _train(args: argparse.Namespace, who: str, library: str, ranks: int = 1) -> tuple[float, float]:
    """Seconds per step of all environments while training, and the mean return of the last 100 episodes."""
    num_envs = args.num_envs * ranks
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        if who != "library":
            command = ["lockstep.train", args.task, "--agent", library, "--num-envs", str(num_envs)]
            command += ["--ranks", str(ranks), *(["--ml-framework", "jax"] if who == "jax" else [])]
            command += ["--max-iterations", str(args.iterations), "--run-dir", str(run)]
            for setting in (
                "evaluate_every=null",
                "evaluate_episodes=1",
                "checkpoint_every=null",
                "stop_when_solved=false",
                "log_every=1",
                f"compile={str(who == 'compiled').lower()}",
            ):
                command += ["--set", setting]
        else:
            command = [f"lockstep.workflows.{library}", "--task", args.task, "--num_envs", str(args.num_envs)]
            command += ["--max_iterations", str(args.iterations), "--run_dir", str(run)]
        _run([sys.executable, "-m", *command])
        summary = json.loads((run / "summary.json").read_text())
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps, clock = _speed(rows)
    return clock / steps * num_envs, summary["return_mean_100"] or float("nan")


def _speed(rows: list[dict[str, float]]) -> tuple[float, float]:
    """Steps and seconds between the first and the last line of metrics: without the start."""
    first, last = rows[0], rows[-1]
    return last["step"] - first["step"], last["time_s"] - first["time_s"]


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    if result.returncode:
        raise SystemExit(f"{' '.join(command)}\n{result.stdout[-2000:]}\n{result.stderr[-2000:]}")
    return result


if __name__ == "__main__":
    main()
