"""Steps per second with learning of `lockstep/Cartpole-v0` on tensors, one core, next to the trainers of Isaac Lab.

    python benchmarks/tensor_env.py [--python INTERPRETER] [--num-envs 4096] [--updates 20] [--rounds 3]

Every library trains PPO with the settings that Isaac Lab publishes for its cart-pole (16 steps, 8 epochs, 8
minibatches, a body of 2 x 32 ELU) on the same object, `lockstep.torch.envs.cartpole.Cartpole`. skrl, rl_games and
rsl_rl are taken from INTERPRETER, an environment that has them (default: LOCKSTEP_ISAAC_PYTHON). Each is a process of
its own; rounds alternate between libraries, and the fastest round counts. A rate per second of the processor depends
less on other work on the machine than one per second of the wall.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
OURS = ("tensors", "numpy")
PEERS = ("skrl", "rl_games", "rsl_rl")
STEPS, EPOCHS, MINIBATCHES = 16, 8, 8


def make_env(num_envs: int) -> Any:
    """The environments that every library is given."""
    from lockstep.torch.envs.cartpole import Cartpole

    env = Cartpole(num_envs, device=torch.device("cpu"))
    env.reset([0])
    return env


def ours(num_envs: int, *, tensors: bool) -> Callable[[int], None]:
    """A function that makes updates of Lockstep's PPO."""
    from lockstep.distributed.timers import Timers
    from lockstep.envs.cartpole import Cartpole
    from lockstep.experience.rollout import Collector
    from lockstep.recipes.cartpole_isaac import recipe
    from lockstep.run import override
    from lockstep.torch.comm import Comm
    from lockstep.torch.device_rollout import TensorCollector
    from lockstep.torch.networks import Policy, actor_of
    from lockstep.torch.ppo import PPO
    from lockstep.world import World

    run = override(recipe(), {"num_envs": num_envs})
    env = make_env(num_envs)
    comm = Comm(World(), device="cpu")
    ppo = PPO(run, Policy(env.spec, run.network), comm)
    common: dict[str, Any] = {"num_steps": STEPS, "seed": 0, "timers": Timers()}
    collector: Any
    if tensors:
        collector = TensorCollector(comm, [env], ppo.policy, ppo.normalizers, gamma=run.algorithm.gamma, **common)
    else:
        actor = actor_of(ppo.policy, comm.device)
        collector = Collector(
            comm.world, [Cartpole(num_envs)], actor, ppo.policy.distribution, report_non_finite=True, **common
        )

    def train(updates: int) -> None:
        for _ in range(updates):
            ppo.update(collector.collect(), np.zeros((1, 1)))

    return train


def theirs(library: str) -> Callable[[int], Callable[[int], None]]:
    """What makes a library's updates; `lockstep bench cartpole_4096` has the scripts."""
    sys.path.insert(0, str(ROOT / "src" / "lockstep" / "cli" / "bench" / "contenders"))
    return importlib.import_module(f"with_{library}").updates


def measure(library: str, num_envs: int, updates: int) -> dict[str, float]:
    """Steps per second of the wall and of the processor, after two updates."""
    torch.set_num_threads(1)
    makers: dict[str, Callable[[int], Callable[[int], None]]] = {
        "tensors": lambda size: ours(size, tensors=True),
        "numpy": lambda size: ours(size, tensors=False),
    }
    train = (makers.get(library) or theirs(library))(num_envs)
    torch.set_num_threads(1)  # rl_games sets them too
    train(2)
    wall, cpu = time.perf_counter(), time.process_time()
    train(updates)
    steps = num_envs * STEPS * updates
    return {"wall": steps / (time.perf_counter() - wall), "cpu": steps / (time.process_time() - cpu)}


def main() -> None:
    """Measure all libraries, and print their rates and ours over the best of the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("LOCKSTEP_ISAAC_PYTHON"))
    parser.add_argument("--num-envs", type=int, default=4096)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--library", choices=[*OURS, *PEERS])
    args = parser.parse_args()
    if args.library:
        print(json.dumps(measure(args.library, args.num_envs, args.updates)))
        return
    best: dict[str, dict[str, float]] = {}
    for _ in range(args.rounds):
        for library in (*OURS, *(PEERS if args.python else ())):
            python = sys.executable if library in OURS else args.python
            command = [python, __file__, "--library", library, "--num-envs", args.num_envs, "--updates", args.updates]
            environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
            done = subprocess.run(
                [str(part) for part in command], env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                print(f"{library}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
                continue
            rates = json.loads(done.stdout.strip().splitlines()[-1])
            known = best.setdefault(library, rates)
            best[library] = {name: max(rate, known[name]) for name, rate in rates.items()}
    for library, rates in best.items():
        print(f"{library:10} {rates['wall']:9.0f} steps/s   {rates['cpu']:9.0f} per second of the processor")
    peers = [best[name]["cpu"] for name in PEERS if name in best]
    if peers:
        print(f"tensors / best of the others: {best['tensors']['cpu'] / max(peers):.2f} (processor)")
    print(f"tensors / numpy: {best['tensors']['cpu'] / best['numpy']['cpu']:.2f} (processor)")
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
