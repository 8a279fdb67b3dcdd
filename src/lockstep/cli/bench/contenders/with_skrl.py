"""skrl: PPO on `lockstep/Cartpole-v0` as tensors, with the settings that Isaac Lab publishes."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from clock import arguments
from robot_settings import STEPS, skrl
from skrl.envs.wrappers.torch import Wrapper
from skrl.utils.runner.torch import Runner
from tensor_cartpole import make_env, measure


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

    runner = Runner(Env(), skrl())

    def train(updates: int) -> None:
        runner.trainer.cfg.timesteps = STEPS * updates
        runner.trainer.timesteps = STEPS * updates
        runner.run("train")

    return train


if __name__ == "__main__":
    measure(updates, arguments("num_envs"))
