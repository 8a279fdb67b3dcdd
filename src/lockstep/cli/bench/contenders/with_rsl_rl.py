"""rsl_rl: PPO on `lockstep/Cartpole-v0` as tensors, with the settings that Isaac Lab publishes."""

from collections.abc import Callable
from typing import Any

import torch
from clock import arguments
from robot_settings import rsl_rl
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensor_cartpole import make_env, measure
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
            time_outs = step.truncated & ~step.terminated  # whose next state has a value
            return self.get_observations(), step.reward, ended, {"time_outs": time_outs}

    runner = OnPolicyRunner(Env(), rsl_rl(), log_dir=None, device="cpu")
    return runner.learn


if __name__ == "__main__":
    measure(updates, arguments("num_envs"))
