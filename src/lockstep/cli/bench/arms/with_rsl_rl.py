"""rsl_rl: PPO on `lockstep/Cartpole-v0` as tensors, with the settings that Isaac Lab publishes."""

from collections.abc import Callable
from typing import Any

import torch
from clock import arguments
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensor_cartpole import EPOCHS, MINIBATCHES, STEPS, make_env, measure
from tensordict import TensorDict


def updates(num_envs: int) -> Callable[[int], None]:
    """A function that makes updates of rsl_rl's PPO."""

    class Env(VecEnv):
        """The environments, as rsl_rl takes them."""

        def __init__(self) -> None:
            self.num_envs, self.num_actions, self.max_episode_length = num_envs, 1, 300
            self.device, self.cfg = "cpu", {}
            self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
            self._env = make_env(num_envs)
            self._seen = self._env.reset([0]).policy.clone()

        def get_observations(self) -> Any:
            return TensorDict({"policy": self._seen}, batch_size=[self.num_envs])

        def step(self, actions: Any) -> Any:
            step = self._env.step(actions)
            self._seen = step.observation.policy
            ended = (step.terminated | step.truncated).long()
            return self.get_observations(), step.reward, ended, {"time_outs": step.truncated}

    model = {"class_name": "MLPModel", "hidden_dims": [32, 32], "activation": "elu", "obs_normalization": False}
    gaussian = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "scalar"}
    config = {
        "num_steps_per_env": STEPS, "save_interval": 10**6, "check_for_nan": False, "logger": "tensorboard",
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": model | {"distribution_cfg": gaussian}, "critic": dict(model),
        "algorithm": {
            "class_name": "PPO", "num_learning_epochs": EPOCHS, "num_mini_batches": MINIBATCHES, "learning_rate": 3e-4,
            "schedule": "adaptive", "gamma": 0.99, "lam": 0.95, "entropy_coef": 0.0, "desired_kl": 0.008,
            "max_grad_norm": 1.0, "value_loss_coef": 2.0, "use_clipped_value_loss": True, "clip_param": 0.2,
            "rnd_cfg": None, "symmetry_cfg": None,
        },
    }  # fmt: skip
    runner = OnPolicyRunner(Env(), config, log_dir=None, device="cpu")
    return runner.learn


if __name__ == "__main__":
    measure(updates, arguments("num_envs"))
