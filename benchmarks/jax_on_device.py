"""PPO with its environment on the device: steps per second and compile time against PureJaxRL, and weak scaling.

    python benchmarks/jax_on_device.py --purejaxrl DIR [--gymnax PYTHON] [--repetitions 5]

`DIR` holds the package `purejaxrl` (luchris429/purejaxrl: `ppo.py`, `wrappers.py`), which is not part of this
repository. `PYTHON` is an interpreter with jax, flax, distrax, chex, six and gymnax 1.0.1; by default one is made.

CartPole-v1, 8 environments x 128 steps, 4 epochs x 4 minibatches, 2 x 64 tanh, one thread on one core. Both sides are
measured by the processor time of their own process, in turn, so that a busy machine slows neither in secret; wall time
is told beside it. The host looks as rarely as PureJaxRL's does: once per call.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

from measure import peer_python

UPDATES = 500
PACKAGES = ("jax", "optax", "numpy", "flax==0.12.8", "distrax==0.1.9", "chex==0.1.92", "six==1.17.0", "gymnax==1.0.1")
PEER = r"""
import os, sys, time, types
sys.path.insert(0, sys.argv[1])
try:
    import brax.envs
except ImportError:  # its wrappers name it and do not need it here
    brax = types.ModuleType("brax"); brax.envs = types.ModuleType("brax.envs")
    sys.modules |= {"brax": brax, "brax.envs": brax.envs}
import gymnax, jax, json
make = gymnax.make

class Five:  # gymnax 1.0 tells six things of a step; PureJaxRL was written for five
    def __init__(self, env): self._env = env
    def __getattr__(self, name): return getattr(self._env, name)
    def step(self, key, state, action, params=None):
        seen, state, reward, terminated, truncated, _ = self._env.step(key, state, action, params)
        return seen, state, reward, terminated | truncated, {}

def five(name):
    env, params = make(name)
    return Five(env), params

gymnax.make = five
from purejaxrl.ppo import make_train
updates = int(sys.argv[2])
config = dict(LR=2.5e-4, NUM_ENVS=8, NUM_STEPS=128, TOTAL_TIMESTEPS=updates * 1024, UPDATE_EPOCHS=4, NUM_MINIBATCHES=4,
              GAMMA=0.99, GAE_LAMBDA=0.95, CLIP_EPS=0.2, ENT_COEF=0.01, VF_COEF=0.5, MAX_GRAD_NORM=0.5,
              ACTIVATION="tanh", ENV_NAME="CartPole-v1", ANNEAL_LR=True, DEBUG=False)
key = jax.random.PRNGKey(0)
before = time.process_time()
compiled = jax.jit(make_train(config)).lower(key).compile()
told = {"compile_s": time.process_time() - before}
cpu, wall = time.process_time(), time.perf_counter()
out = jax.block_until_ready(compiled(key))
told |= {"steps_per_cpu_s": updates * 1024 / (time.process_time() - cpu)}
told |= {"steps_per_s": updates * 1024 / (time.perf_counter() - wall)}
told |= {"return": float(out["metrics"]["returned_episode_returns"][-1].mean())}
print(json.dumps(told))
"""


def ours(rank: int, ranks: int, port: int, updates: int) -> None:
    """Print what this rank measured; weak scaling: 8 environments for each rank."""
    import time

    from lockstep import World
    from lockstep.algorithms.ppo import PPOConfig
    from lockstep.jax import hardware
    from lockstep.jax.comm import Comm
    from lockstep.jax.envs.make import make_device_env
    from lockstep.jax.envs.packed import PackedEnv
    from lockstep.jax.networks import Policy
    from lockstep.jax.ppo import PPO
    from lockstep.jax.ppo_on_device import PPODeviceLoop
    from lockstep.record.progress import Progress
    from lockstep.run import Run

    run = Run(
        task="jax/CartPole-v1", ml_framework="jax", num_envs=8 * ranks, total_steps=updates * 1024 * ranks,
        log_every=None, evaluate_every=None, checkpoint_every=None, check_every=updates, algorithm=PPOConfig(),
    )  # fmt: skip
    world = run.with_shards(World(rank=rank, size=ranks, address="127.0.0.1", port=port))
    hardware.one_thread()
    with Comm(world, device="cpu") as comm:
        env = PackedEnv(make_device_env(run.task, run.env))
        ppo = PPO(run, Policy(env.spec, run.network, seed=0), comm)
        loop = PPODeviceLoop(run, env, ppo)
        before = time.process_time()
        loop.warmup()
        told = {"compile_s": time.process_time() - before}
        comm.barrier("start")
        cpu, wall = time.process_time(), time.perf_counter()
        made = loop.run_until_due(Progress(run.total_steps))
        told |= {"steps_per_cpu_s": made * 1024 / (time.process_time() - cpu)}
        told |= {"steps_per_s": made * 1024 * ranks / (time.perf_counter() - wall)}
        if rank == 0:
            print(json.dumps(told), flush=True)


def measured(command: list[str], core: int) -> dict[str, float]:
    """What a process of its own on one core told."""
    flags = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "NPROC": "1", "JAX_PLATFORMS": "cpu"}
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {core})
        done = subprocess.run(command, env=os.environ | flags, capture_output=True, text=True, check=False)
    finally:
        os.sched_setaffinity(0, before)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def ranks_of(count: int, cores: list[int], updates: int) -> dict[str, float]:
    """What rank 0 told of a world of `count` processes, each on a core of its own."""
    from lockstep.launch.rank_environment import free_port

    port, before, started = free_port(), os.sched_getaffinity(0), []
    for rank in range(count):
        os.sched_setaffinity(0, {cores[rank]})
        words = [sys.executable, __file__, "--rank", str(rank), "--ranks", str(count), "--port", str(port)]
        words += ["--updates", str(updates)]
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
    os.sched_setaffinity(0, before)
    said = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit("a rank failed")
    return json.loads(said[0].strip().splitlines()[-1])


def tell(rows: dict[str, list[dict[str, float]]]) -> None:
    """Medians, and medians of ratios."""
    for name, told in rows.items():
        print(name, {key: round(statistics.median(row[key] for row in told), 1) for key in told[0]})

    def ratio(name: str, key: str) -> float:
        return statistics.median(a[key] / b[key] for a, b in zip(rows["lockstep"], rows[name], strict=True))

    if "PureJaxRL" in rows:
        print(f"steps per processor second, times PureJaxRL's: {ratio('PureJaxRL', 'steps_per_cpu_s'):.2f}")
        print(f"steps per second, times PureJaxRL's: {ratio('PureJaxRL', 'steps_per_s'):.2f}")
        print(f"processor seconds to compile, times PureJaxRL's: {ratio('PureJaxRL', 'compile_s'):.2f}")
    if "2 ranks" in rows:
        print(f"2 ranks on 2 cores, times one rank on one: {1 / ratio('2 ranks', 'steps_per_s'):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--purejaxrl")
    parser.add_argument("--gymnax")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--updates", type=int, default=UPDATES)
    for name in ("--rank", "--ranks", "--port"):
        parser.add_argument(name, type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ranks:
        ours(args.rank, args.ranks, args.port, args.updates)
        return
    cores = sorted(os.sched_getaffinity(0))
    words = ["-c", PEER, str(args.purejaxrl), str(args.updates)]
    arms = {"lockstep": lambda: ranks_of(1, cores[-1:], args.updates)}
    if args.purejaxrl:
        python = args.gymnax or peer_python("gymnax", PACKAGES)
        arms["PureJaxRL"] = lambda: measured([python, *words], cores[-1])
    if len(cores) > 1:
        arms["2 ranks"] = lambda: ranks_of(2, cores[-2:], args.updates)
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in arms}
    for _ in range(args.repetitions):
        for name, arm in arms.items():
            rows[name].append(arm())
            print(name, rows[name][-1], file=sys.stderr)
    tell(rows)


if __name__ == "__main__":
    main()
