"""rl_games: PPO on `lockstep/Cartpole-v0` as tensors, with the settings that Isaac Lab publishes."""

import contextlib
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any

import gym
import numpy as np
from clock import arguments
from rl_games.common import env_configurations, vecenv
from rl_games.torch_runner import Runner
from robot_settings import rl_games
from tensor_cartpole import make_env, measure


def updates(num_envs: int) -> Callable[[int], None]:
    """A function that makes updates of rl_games' PPO."""

    class Env(vecenv.IVecEnv):
        """The environments, as rl_games takes them."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._env = make_env(num_envs)

        def reset(self) -> Any:
            return self._env.reset([0]).policy.clone()

        def step(self, actions: Any) -> Any:
            step = self._env.step(actions)
            ended = step.terminated | step.truncated
            time_outs = step.truncated & ~step.terminated  # whose next state has a value
            return step.observation.policy, step.reward, ended.long(), {"time_outs": time_outs}

        def get_number_of_agents(self) -> int:
            return 1

        def get_env_info(self) -> Any:
            box = gym.spaces.Box
            return {"observation_space": box(-np.inf, np.inf, (4,)), "action_space": box(-1.0, 1.0, (1,))}

    vecenv.register("lockstep", lambda name, actors, **kwargs: Env())
    env_configurations.register("lockstep", {"vecenv_type": "lockstep", "env_creator": lambda **kwargs: Env()})
    runner = Runner()
    runner.load(rl_games(num_envs))
    agent = runner.algo_factory.create(runner.algo_name, base_name="run", params=runner.params)
    agent.init_tensors()
    agent.obs = agent.env_reset()

    def train(updates: int) -> None:
        for _ in range(updates):
            agent.update_epoch()
            agent.train_epoch()

    return train


if __name__ == "__main__":
    # rl_games makes folders for its checkpoints below the working directory.
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder, contextlib.chdir(folder):
        measure(updates, arguments("num_envs"))
