"""One training of Stable-Baselines3 or sbx, its version in JAX, evaluated as `lockstep train` evaluates.

`learning.py --library sb3` or `sbx` runs it with the interpreter of `lockstep bench`, which has one of the libraries.
The settings are those of RL Baselines3 Zoo (https://github.com/DLR-RM/rl-baselines3-zoo, hyperparams/sac.yml,
td3.yml and ppo.yml). Prints a JSON object: versions, the curve and the last evaluation.

With `--keep FOLDER`, SAC and TD3 of Stable-Baselines3 save their state there as they go, and a run that was cut off
continues from it: with its networks, optimizers and replay buffer, a new episode and other random numbers. `starts` in
the result counts how often it began or went on.
"""

import argparse
import importlib
import json
import shutil
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
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
SAVE_EVERY = 10_000

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


class Checkpoints(BaseCallback):
    """Saves the newest state of a run in a folder.

    Args:
        folder: has a folder for each checkpoint; those with a `state.json` are complete, and only the newest stays.
        evaluations: its curve is saved, too; it comes first in the list of callbacks.
    """

    def __init__(self, folder: Path, evaluations: Evaluations) -> None:
        super().__init__()
        self._folder = folder
        self._evaluations = evaluations
        self._begun = time.monotonic()
        self.starts = 1
        self.earlier_s = 0.0
        """Seconds of the earlier starts, until their last checkpoint."""

    def resume(self, model: Any, seed: int) -> Any:
        """The model of the newest checkpoint, if there is one; else `model`."""
        files = sorted(self._folder.glob("*/state.json"), key=lambda file: int(file.parent.name))
        if not files:
            return model
        state: dict[str, Any] = json.loads(files[-1].read_text())
        self._evaluations.curve = [(step, value) for step, value in state["curve"]]
        self.starts, self.earlier_s = state["starts"] + 1, state["seconds"]
        resumed = type(model).load(files[-1].with_name("model.zip"), env=model.get_env(), device="cpu")
        resumed.load_replay_buffer(files[-1].with_name("replay.pkl"))
        resumed.set_random_seed(seed + 1000 * (self.starts - 1))  # not the numbers of the first start again
        return resumed

    def seconds(self) -> float:
        """Of all starts together."""
        return self.earlier_s + time.monotonic() - self._begun

    def _on_step(self) -> bool:
        if self.num_timesteps % SAVE_EVERY == 0:
            earlier = list(self._folder.glob("*"))
            new = self._folder / str(self.num_timesteps)
            new.mkdir(parents=True, exist_ok=True)
            model: Any = self.model
            model.save(new / "model.zip")
            model.save_replay_buffer(new / "replay.pkl")
            state = {"curve": self._evaluations.curve, "starts": self.starts, "seconds": self.seconds()}
            (new / "state.json").write_text(json.dumps(state))
            for folder in earlier:
                shutil.rmtree(folder)
        return True


def main() -> None:
    """Train, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    parser.add_argument("algo", choices=["ppo", "sac", "td3"])
    parser.add_argument("seed", type=int)
    parser.add_argument("total_steps", type=int)
    parser.add_argument("--keep", type=Path, help="a folder for the state of the run, which is removed at its end")
    args = parser.parse_args()
    if args.algo == "ppo" and args.task not in PPO_SETTINGS:
        parser.error(f"ppo has settings for {' and '.join(PPO_SETTINGS)} here, not for {args.task}")
    if args.total_steps % EVALUATE_EVERY:
        parser.error(f"total_steps={args.total_steps} must be a multiple of {EVALUATE_EVERY}")
    torch.set_num_threads(1)
    model, evaluations = learner(args.algo, args.task, args.seed), Evaluations(args.task)
    checkpoints = Checkpoints(args.keep or Path(), evaluations)
    keeps = args.keep is not None and args.algo != "ppo" and not IN_JAX
    if keeps:
        model = checkpoints.resume(model, args.seed)
    callbacks: list[BaseCallback] = [evaluations, checkpoints] if keeps else [evaluations]
    model.learn(args.total_steps - model.num_timesteps, callback=callbacks, reset_num_timesteps=False)
    names = ("stable-baselines3", *(("sbx-rl", "jax") if IN_JAX else ("torch",)), "gymnasium", "mujoco")
    result = {
        "env_steps": args.total_steps,
        "eval_return_mean": evaluations.curve[-1][1],
        "eval_episodes": 20,
        "wall_time_s": checkpoints.seconds(),
        "starts": checkpoints.starts,
        "versions": {name: version(name) for name in names},
        "curve": evaluations.curve,
    }
    print(json.dumps(result), flush=True)
    if keeps:
        shutil.rmtree(args.keep, ignore_errors=True)


if __name__ == "__main__":
    main()
