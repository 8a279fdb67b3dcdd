"""PPO on CartPole-v1 in JAX with the environment on the host, ours against sbx: steps per second, learning included.

    python benchmarks/jax_host.py

The same work for both: Gymnasium's task, 8 environments x 128 steps, 4 epochs x 4 minibatches, two networks of 2x64
tanh, one process, one thread, one core. Each repetition is a fresh process; only its steady state counts. sbx lives in
an environment of its own, `.venv-bench-sbx`, made on first use with the versions that Lockstep runs on.
"""

import argparse
import os
from statistics import median

import measure

PEER = "sbx-rl==0.28.0"
ROLLOUT = 8 * 128
WARM_UP = 20 * ROLLOUT
MEASURED = 200 * ROLLOUT
CORE = {min(os.sched_getaffinity(0))}

PEER_SCRIPT = f"""
import time
import flax.linen as nn
from sbx import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

class Clock(BaseCallback):
    times = {{}}
    def _on_rollout_start(self): self.times[self.num_timesteps] = time.monotonic()
    def _on_training_end(self): self.times[self.num_timesteps] = time.monotonic()
    def _on_step(self): return True

clock = Clock()
model = PPO(
    "MlpPolicy", make_vec_env("CartPole-v1", n_envs=8, seed=0), n_steps=128, batch_size={ROLLOUT // 4}, n_epochs=4,
    learning_rate=2.5e-4, ent_coef=0.01, policy_kwargs=dict(net_arch=[64, 64], activation_fn=nn.tanh), seed=0,
)
model.learn({WARM_UP + MEASURED}, callback=clock)
print({MEASURED} / (clock.times[{WARM_UP + MEASURED}] - clock.times[{WARM_UP}]))
"""


def peer() -> float:
    """Steps per second of sbx."""
    return float(
        measure.call([measure.peer_python("sbx", [PEER, "jax", "torch", "gymnasium"]), "-c", PEER_SCRIPT], CORE)
    )


def ours() -> float:
    """Steps per second of Lockstep, by its command and with its defaults."""
    work = {"ml_framework": "jax", "num_envs": 8, "total_steps": WARM_UP + MEASURED, "log_every": WARM_UP}
    return measure.train("CartPole-v1", work, cores=CORE)["steady"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7)
    args = parser.parse_args()

    measure.peer_python("sbx", [PEER, "jax", "torch", "gymnasium"])
    speeds = measure.in_turn({PEER: peer, "Lockstep": ours}, args.repetitions)
    rows = [[name, f"{median(s):.0f}", measure.ratio(s, speeds[PEER])] for name, s in speeds.items()]
    print(f"{measure.machine()}; {args.repetitions} repetitions, one core\n")
    print(measure.table(["CartPole-v1, PPO in JAX, host environments, 8 x 128", "steps/s", "ratio (range)"], rows))


if __name__ == "__main__":
    main()
