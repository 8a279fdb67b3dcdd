"""One training of Stable-Baselines3 or sbx, its version in JAX, evaluated as `lockstep train` evaluates.

`learning.py --library sb3` or `sbx` runs it with the interpreter of `lockstep bench`, which has one of the libraries.
The settings are those of RL Baselines3 Zoo (https://github.com/DLR-RM/rl-baselines3-zoo, hyperparams/sac.yml and
td3.yml). Prints a JSON object: versions, the curve and the last evaluation.
"""

import argparse
import importlib
import json
import time
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise

IN_JAX = find_spec("sbx") is not None
ALGORITHMS: Any = importlib.import_module("sbx" if IN_JAX else "stable_baselines3")


def learner(algo: str, task: str, seed: int) -> Any:
    """The algorithm with the settings that the Zoo publishes for MuJoCo's tasks."""
    common: dict[str, Any] = {"learning_starts": 10_000, "seed": seed, "device": "cpu"}
    env = gymnasium.make(task)
    if algo == "sac":
        return ALGORITHMS.SAC("MlpPolicy", env, **common)
    actions = env.action_space.shape[0]  # pyright: ignore[reportOptionalSubscript]
    noise = NormalActionNoise(np.zeros(actions), 0.1 * np.ones(actions))
    return ALGORITHMS.TD3(
        "MlpPolicy", env, learning_rate=1e-3, train_freq=1, gradient_steps=1, batch_size=256, action_noise=noise,
        policy_kwargs={"net_arch": [400, 300]}, **common,
    )  # fmt: skip


class Evaluations(BaseCallback):
    """Evaluates the most likely actions every so many steps, over 20 episodes, in an environment of their own."""

    def __init__(self, task: str, every: int) -> None:
        super().__init__()
        self._env = Monitor(gymnasium.make(task))
        self._every = every
        self.curve: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        if self.num_timesteps % self._every == 0:
            returns, _ = evaluate_policy(
                self.model, self._env, n_eval_episodes=20, deterministic=True, return_episode_rewards=True
            )
            self.curve.append((self.num_timesteps, round(float(np.mean(returns)), 2)))
        return True


def main() -> None:
    """Train, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    parser.add_argument("algo", choices=["sac", "td3"])
    parser.add_argument("seed", type=int)
    parser.add_argument("total_steps", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)
    evaluations = Evaluations(args.task, 100_000)
    begun = time.monotonic()
    learner(args.algo, args.task, args.seed).learn(args.total_steps, callback=evaluations)
    names = ("stable-baselines3", *(("sbx-rl", "jax") if IN_JAX else ("torch",)), "gymnasium", "mujoco")
    result = {
        "env_steps": args.total_steps,
        "eval_return_mean": evaluations.curve[-1][1],
        "eval_episodes": 20,
        "wall_time_s": time.monotonic() - begun,
        "versions": {name: version(name) for name in names},
        "curve": evaluations.curve,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
