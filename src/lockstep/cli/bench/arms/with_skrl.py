"""skrl: PPO on `lockstep/Cartpole-v0` as tensors, with the settings that Isaac Lab publishes."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from clock import arguments
from skrl.envs.wrappers.torch import Wrapper
from skrl.utils.runner.torch import Runner
from tensor_cartpole import EPOCHS, MINIBATCHES, STEPS, make_env, measure


def updates(num_envs: int) -> Callable[[int], None]:
    """A function that makes updates of skrl's PPO."""

    class Env(Wrapper):
        """The environments, as skrl takes them."""

        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,))
        action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
        state_space = None
        num_agents = 1

        def __init__(self) -> None:
            super().__init__(make_env(num_envs))

        def reset(self) -> Any:
            return self._env.reset([0]).policy.clone(), {}

        def step(self, actions: Any) -> Any:
            step = self._env.step(actions)
            flags = (step.reward, step.terminated, step.truncated)
            return step.observation.policy, *(flag.unsqueeze(1) for flag in flags), {}

        def state(self) -> None:
            return None

        def render(self, *args: Any, **kwargs: Any) -> None:
            pass

        def close(self) -> None:
            pass

    layers = [{"name": "net", "input": "OBSERVATIONS", "layers": [32, 32], "activations": "elu"}]
    policy = {
        "class": "GaussianMixin", "clip_actions": False, "clip_log_std": True, "min_log_std": -20.0,
        "max_log_std": 2.0, "initial_log_std": 0.0, "network": layers, "output": "ACTIONS",
    }  # fmt: skip
    value = {"class": "DeterministicMixin", "clip_actions": False, "network": layers, "output": "ONE"}
    agent = {
        "class": "PPO", "rollouts": STEPS, "learning_epochs": EPOCHS, "mini_batches": MINIBATCHES,
        "discount_factor": 0.99, "gae_lambda": 0.95, "learning_rate": 3e-4, "learning_rate_scheduler": "KLAdaptiveLR",
        "learning_rate_scheduler_kwargs": {"kl_threshold": 0.008}, "grad_norm_clip": 1.0, "ratio_clip": 0.2,
        "value_clip": 0.2, "entropy_loss_scale": 0.0, "value_loss_scale": 2.0,
        "experiment": {"write_interval": 0, "checkpoint_interval": 0},
    }  # fmt: skip
    config = {
        "seed": 42, "models": {"separate": False, "policy": policy, "value": value},
        "memory": {"class": "RandomMemory", "memory_size": -1}, "agent": agent,
        "trainer": {
            "class": "SequentialTrainer", "timesteps": STEPS, "environment_info": "log",
            "close_environment_at_exit": False, "disable_progressbar": True,
        },
    }  # fmt: skip
    runner = Runner(Env(), config)

    def train(updates: int) -> None:
        runner.trainer.cfg.timesteps = STEPS * updates
        runner.trainer.timesteps = STEPS * updates
        runner.run("train")

    return train


if __name__ == "__main__":
    measure(updates, arguments("num_envs"))
