"""DQN on Pong, ours against Stable-Baselines3, and 2 ranks against 1: environment steps per second, learning included.

    python benchmarks/pong_dqn.py
    python benchmarks/pong_dqn.py --only parts            # where the time of a gradient step goes
    python benchmarks/pong_dqn.py --encoder wide --only ranks --steps 1200

The same work for all: CleanRL's settings, that is the Nature CNN, plain Q-learning, a gradient step on 32 transitions
for every 4 environment steps, Adam, the gradient's norm clipped. Stable-Baselines3 plays one environment; ours plays 4,
one step of each between two gradient steps. One process has one thread and one core. Two ranks do the work of one
together: 2 environments and 16 transitions each. Each repetition is a fresh process; only its steady state counts.
"""

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, median
from typing import Any

import cartpole_ppo
import measure
from overhead import Clock

from lockstep import Run, World, spawn
from lockstep.recipes import pong_small
from lockstep.run import override

PEER_PACKAGES = [f"{name}=={importlib.metadata.version(name)}" for name in ("ale-py", "opencv-python-headless")]
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

PEER_SCRIPT = f"""
import sys, time, ale_py, gymnasium, torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

class Clock(BaseCallback):
    times = {{}}
    def _on_step(self):
        self.times[self.num_timesteps] = time.monotonic()
        return True

steps = int(sys.argv[1])
torch.set_num_threads(1)
gymnasium.register_envs(ale_py)
clock = Clock()
model = DQN(
    "CnnPolicy", VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=1, seed=0), 4), learning_rate=1e-4,
    buffer_size=20_000, learning_starts={LEARNING_STARTS}, batch_size=32, gamma=0.99, train_freq=4, gradient_steps=1,
    target_update_interval=1000, exploration_fraction=0.1, exploration_final_eps=0.01, device="cpu", seed=0,
)
model.learn({WARM_UP} + steps, callback=clock)
print(steps / (clock.times[{WARM_UP} + steps] - clock.times[{WARM_UP}]))
"""


def peer_python() -> str:
    """The interpreter of the peer's environment, with Atari games."""
    python, made = cartpole_ppo.peer_python(), cartpole_ppo.PEER_VENV / "complete-atari"
    if not made.exists():
        print(f"adding {', '.join(PEER_PACKAGES)} to {cartpole_ppo.PEER_VENV}", file=sys.stderr)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEER_PACKAGES], check=True)
        made.touch()
    return python


def peer(steps: int) -> float:
    """Steps per second of Stable-Baselines3."""
    return float(measure.call([peer_python(), "-c", PEER_SCRIPT, str(steps)], cartpole_ppo.CORE))


def ours(steps: int, ranks: int, encoder: str) -> float:
    """Steps per second of Lockstep, by its command."""
    settings = {**SETTINGS, "total_steps": WARM_UP + steps, "network.encoder": encoder}
    cores = cartpole_ppo.CORE if ranks == 1 else None
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


def parts_of(ranks: int, steps: int, encoder: str) -> dict[str, float]:
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
        cartpole_ppo.PEER: lambda: peer(args.steps),
        "Lockstep, 1 rank": lambda: ours(args.steps, 1, args.encoder),
        "Lockstep, 2 ranks": lambda: ours(args.steps, 2, args.encoder),
    }
    if args.only == "ranks" or args.encoder != "nature":
        del arms[cartpole_ppo.PEER]
    else:
        peer_python()
    found = measure.in_turn(arms, args.repetitions)
    one, rows = found["Lockstep, 1 rank"], []
    for name, speed in found.items():
        against = measure.ratio(speed, found[cartpole_ppo.PEER]) if cartpole_ppo.PEER in found else ""
        promised = {"Lockstep, 1 rank": "1.5 of the peer", "Lockstep, 2 ranks": "1.5 of 1 rank"}.get(name, "")
        rows.append([name, f"{median(speed):.1f}", against, measure.ratio(speed, one), promised])
    head = [f"Pong, DQN, {args.encoder}, 32", "steps/s, median", "to the peer", "to 1 rank", "promised, at least"]
    print(measure.table(head, rows), "\n")


def parts(args: argparse.Namespace) -> None:
    """Measure and print where the time of a gradient step goes."""
    told = {ranks: [parts_of(ranks, args.steps, args.encoder) for _ in range(args.repetitions)] for ranks in (1, 2)}
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
    parser.add_argument("--encoder", default="nature", help="of our network; the peer has the Nature CNN")
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
