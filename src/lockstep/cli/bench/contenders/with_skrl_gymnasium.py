"""skrl on Gymnasium's environments, in torch or JAX: PPO on CartPole-v1 and on Hopper-v5."""

import argparse
import importlib
from typing import Any

import gymnasium
import numpy as np
from clock import Clock, arguments, report

COMMON = {
    "class": "PPO", "discount_factor": 0.99, "gae_lambda": 0.95, "grad_norm_clip": 0.5, "ratio_clip": 0.2,
    "value_loss_scale": 0.5, "experiment": {"write_interval": 0, "checkpoint_interval": 0},
}  # fmt: skip
NORMALIZED = {
    "observation_preprocessor": "RunningStandardScaler", "observation_preprocessor_kwargs": None,
    "value_preprocessor": "RunningStandardScaler", "value_preprocessor_kwargs": None,
}  # fmt: skip
WORKLOADS: dict[str, tuple[str, int, dict[str, Any], dict[str, Any]]] = {
    "cartpole_ppo": (
        "CartPole-v1",
        8,
        {"class": "CategoricalMixin", "unnormalized_log_prob": True},
        {"rollouts": 128, "learning_epochs": 4, "mini_batches": 4, "learning_rate": 2.5e-4, "entropy_loss_scale": 0.01},
    ),
    "hopper_ppo": (
        "Hopper-v5",
        4,
        {"class": "GaussianMixin", "clip_actions": False, "clip_log_std": False, "initial_log_std": 0.0},
        {
            "rollouts": 512, "learning_epochs": 10, "mini_batches": 32, "learning_rate": 3e-4,
            "entropy_loss_scale": 0.0, **NORMALIZED,
        },
    ),
}  # fmt: skip
"""The task, the number of environments, the policy and the settings of PPO."""


def main(args: argparse.Namespace) -> None:
    """Train, and print the steps per second."""
    if args.framework == "torch":
        import torch

        torch.set_num_threads(1)
    task, num_envs, policy, settings = WORKLOADS[args.workload]
    envs = gymnasium.make_vec(
        task,
        num_envs,
        vectorization_mode="sync",
        wrappers=[lambda env: gymnasium.wrappers.DtypeObservation(env, np.float32)],  # MuJoCo has float64
        vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP},
    )
    wrapped = importlib.import_module(f"skrl.envs.wrappers.{args.framework}").wrap_env(envs, wrapper="gymnasium")
    layers = [{"name": "net", "input": "OBSERVATIONS", "layers": [64, 64], "activations": "tanh"}]
    config = {
        "seed": 0,
        "models": {
            "separate": True,
            "policy": {**policy, "network": layers, "output": "ACTIONS"},
            "value": {"class": "DeterministicMixin", "clip_actions": False, "network": layers, "output": "ONE"},
        },
        "memory": {"class": "RandomMemory", "memory_size": -1},
        "agent": {**COMMON, **settings},
        "trainer": {
            "class": "SequentialTrainer", "timesteps": settings["rollouts"], "environment_info": "log",
            "headless": True, "close_environment_at_exit": False, "disable_progressbar": True,
        },
    }  # fmt: skip
    runner = importlib.import_module(f"skrl.utils.runner.{args.framework}").Runner(wrapped, config)
    rollout = num_envs * settings["rollouts"]
    clock, done = Clock(args.warm_up), 0
    for steps in (args.warm_up, args.measured):
        updates = max(1, round(steps / rollout))
        runner.trainer.cfg.timesteps = settings["rollouts"] * updates
        runner.trainer.timesteps = settings["rollouts"] * updates
        runner.run("train")
        done += rollout * updates
        clock.mark(done)
    report(clock.per_second(), ["skrl", "torch", "jax", "flax", "gymnasium"])


if __name__ == "__main__":
    main(arguments("framework", "workload"))
