"""PPO on CartPole-v1, ours against Stable-Baselines3: environment steps per second, learning included.

    python benchmarks/cartpole_ppo.py                  # eager
    python benchmarks/cartpole_ppo.py --compile        # and compiled

The same work for both: 8 environments x 128 steps, 4 epochs x 4 minibatches, two networks of 2x64 tanh, one process,
one thread, one core. Each repetition is a fresh process; only its steady state counts. Stable-Baselines3 lives in an
environment of its own, `.venv-bench-sb3`, made on first use with the torch version that Lockstep runs on.
"""

import argparse
import os
from statistics import median

import measure

PEER = "stable-baselines3==2.9.2"
ROLLOUT = 8 * 128
WARM_UP = 20 * ROLLOUT
MEASURED = 80 * ROLLOUT
CORE = {min(os.sched_getaffinity(0))}

PEER_SCRIPT = f"""
import time, torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

class Clock(BaseCallback):
    times = {{}}
    def _on_rollout_start(self): self.times[self.num_timesteps] = time.monotonic()
    def _on_training_end(self): self.times[self.num_timesteps] = time.monotonic()
    def _on_step(self): return True

torch.set_num_threads(1)
clock = Clock()
model = PPO(
    "MlpPolicy", make_vec_env("CartPole-v1", n_envs=8, seed=0), n_steps=128, batch_size={ROLLOUT // 4}, n_epochs=4,
    learning_rate=lambda left: 2.5e-4 * left, ent_coef=0.01, policy_kwargs=dict(net_arch=[64, 64]), device="cpu",
    seed=0,
)
model.learn({WARM_UP + MEASURED}, callback=clock)
print({MEASURED} / (clock.times[{WARM_UP + MEASURED}] - clock.times[{WARM_UP}]))
"""


def peer_python() -> str:
    """The interpreter of the peer's environment, which is made if it does not exist."""
    return measure.peer_python("sb3", [PEER, "torch", "gymnasium"])


def peer() -> float:
    """Steps per second of Stable-Baselines3."""
    return float(measure.call([peer_python(), "-c", PEER_SCRIPT], CORE))


def ours(**settings: object) -> float:
    """Steps per second of Lockstep, by its command and with its defaults."""
    work = {"num_envs": 8, "total_steps": WARM_UP + MEASURED, "log_every": WARM_UP, **settings}
    return measure.train("CartPole-v1", work, cores=CORE)["steady"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--compile", action="store_true", help="also measure --set compile=true")
    args = parser.parse_args()

    arms = {PEER: peer, "Lockstep": ours}
    if args.compile:
        arms["Lockstep, compile"] = lambda: ours(compile="true")
    peer_python()
    speeds = measure.in_turn(arms, args.repetitions)
    rows = [[name, f"{median(s):.0f}", measure.ratio(s, speeds[PEER])] for name, s in speeds.items()]
    print(f"{measure.machine()}; {args.repetitions} repetitions, one core\n")
    print(measure.table(["CartPole-v1, PPO, 8 x 128", "steps/s, median", "ratio, median (range)"], rows))


if __name__ == "__main__":
    main()
