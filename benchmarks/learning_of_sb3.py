"""One training of Stable-Baselines3 or sbx, its version in JAX, evaluated as `lockstep train` evaluates.

`learning.py --library sb3` or `sbx` runs it with the interpreter of `lockstep bench`, which has one of the libraries.
The settings are those of RL Baselines3 Zoo (https://github.com/DLR-RM/rl-baselines3-zoo, hyperparams/sac.yml,
td3.yml and ppo.yml). Prints a JSON object: versions, the curve and the last evaluation.
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
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

IN_JAX = find_spec("sbx") is not None
ALGORITHMS: Any = importlib.import_module("sbx" if IN_JAX else "stable_baselines3")

EVALUATE_EVERY = 100_000

PPO_SETTINGS: dict[str, dict[str, Any]] = {
    "InvertedDoublePendulum-v5": {
        "n_steps": 128, "batch_size": 512, "n_epochs": 10, "learning_rate": 0.000155454, "gamma": 0.98,
        "gae_lambda": 0.8, "clip_range": 0.4, "ent_coef": 1.05057e-06, "vf_coef": 0.695929, "max_grad_norm": 0.5,
    },
    "Reacher-v5": {
        "n_steps": 512, "batch_size": 32, "n_epochs": 5, "learning_rate": 0.000104019, "gamma": 0.9,
        "gae_lambda": 1.0, "clip_range": 0.3, "ent_coef": 7.52585e-08, "vf_coef": 0.950368, "max_grad_norm": 0.9,
    },
}  # fmt: skip
"""The Zoo's settings of PPO by task, which it publishes for v3 and v2 of them, with `normalize: true`."""


def learner(algo: str, task: str, seed: int) -> Any:
    """The algorithm with the settings that the Zoo publishes for MuJoCo's tasks."""
    if algo == "ppo":
        settings = PPO_SETTINGS[task]
        env = VecNormalize(DummyVecEnv([lambda: Monitor(gymnasium.make(task))]), gamma=settings["gamma"])
        return ALGORITHMS.PPO("MlpPolicy", env, seed=seed, device="cpu", **settings)
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

    def __init__(self, task: str) -> None:
        super().__init__()
        self._env: VecEnv = DummyVecEnv([lambda: Monitor(gymnasium.make(task))])
        self.curve: list[tuple[int, float]] = []

    def _on_training_start(self) -> None:
        training = self.model.get_vec_normalize_env()
        if training is not None:
            self._env = VecNormalize(self._env, training=False, norm_reward=False)
            self._env.obs_rms = training.obs_rms  # the same object, so that it follows what training observes

    def _on_step(self) -> bool:
        if self.num_timesteps % EVALUATE_EVERY == 0:
            returns, _ = evaluate_policy(
                self.model, self._env, n_eval_episodes=20, deterministic=True, return_episode_rewards=True
            )
            self.curve.append((self.num_timesteps, round(float(np.mean(returns)), 2)))
        return True


def main() -> None:
    """Train, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    parser.add_argument("algo", choices=["ppo", "sac", "td3"])
    parser.add_argument("seed", type=int)
    parser.add_argument("total_steps", type=int)
    args = parser.parse_args()
    if args.algo == "ppo" and args.task not in PPO_SETTINGS:
        parser.error(f"ppo has settings for {' and '.join(PPO_SETTINGS)} here, not for {args.task}")
    if args.total_steps % EVALUATE_EVERY:
        parser.error(f"total_steps={args.total_steps} must be a multiple of {EVALUATE_EVERY}")
    torch.set_num_threads(1)
    evaluations = Evaluations(args.task)
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
