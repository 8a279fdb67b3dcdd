"""rl_games: PPO on `lockstep/Cartpole-v0` as tensors, with the settings that Isaac Lab publishes."""

from collections.abc import Callable
from typing import Any

import gym
import numpy as np
from clock import arguments
from rl_games.common import env_configurations, vecenv
from rl_games.torch_runner import Runner
from tensor_cartpole import EPOCHS, MINIBATCHES, STEPS, make_env, measure


def parameters(num_envs: int) -> dict[str, Any]:
    """The settings, as rl_games takes them."""
    network = {
        "name": "actor_critic", "separate": False,
        "space": {"continuous": {
            "mu_activation": "None", "sigma_activation": "None", "mu_init": {"name": "default"},
            "sigma_init": {"name": "const_initializer", "val": 0}, "fixed_sigma": True,
        }},
        "mlp": {
            "units": [32, 32], "activation": "elu", "d2rl": False, "initializer": {"name": "default"},
            "regularizer": {"name": "None"},
        },
    }  # fmt: skip
    config = {
        "name": "cartpole", "full_experiment_name": "cartpole", "train_dir": "/tmp/lockstep_bench_rl_games",
        "env_name": "lockstep", "device": "cpu", "device_name": "cpu", "multi_gpu": False, "ppo": True,
        "mixed_precision": False, "normalize_input": False, "normalize_value": False, "num_actors": num_envs,
        "reward_shaper": {"scale_value": 1.0}, "normalize_advantage": False, "gamma": 0.99, "tau": 0.95,
        "learning_rate": 3e-4, "lr_schedule": "adaptive", "kl_threshold": 0.008, "score_to_win": 20000,
        "max_epochs": 10**6, "save_best_after": 10**6, "save_frequency": 0, "grad_norm": 1.0, "entropy_coef": 0.0,
        "truncate_grads": True, "e_clip": 0.2, "horizon_length": STEPS,
        "minibatch_size": num_envs * STEPS // MINIBATCHES, "mini_epochs": EPOCHS, "critic_coef": 4,
        "clip_value": True, "seq_length": 4, "bounds_loss_coef": 0.0001,
    }  # fmt: skip
    return {
        "seed": 42, "algo": {"name": "a2c_continuous"}, "model": {"name": "continuous_a2c_logstd"},
        "network": network, "load_checkpoint": False, "load_path": "", "config": config,
    }  # fmt: skip


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
            return step.observation.policy, step.reward, ended.long(), {"time_outs": step.truncated}

        def get_number_of_agents(self) -> int:
            return 1

        def get_env_info(self) -> Any:
            box = gym.spaces.Box
            return {"observation_space": box(-np.inf, np.inf, (4,)), "action_space": box(-1.0, 1.0, (1,))}

    vecenv.register("lockstep", lambda name, actors, **kwargs: Env())
    env_configurations.register("lockstep", {"vecenv_type": "lockstep", "env_creator": lambda **kwargs: Env()})
    runner = Runner()
    runner.load({"params": parameters(num_envs)})
    agent = runner.algo_factory.create(runner.algo_name, base_name="run", params=runner.params)
    agent.init_tensors()
    agent.obs = agent.env_reset()

    def train(updates: int) -> None:
        for _ in range(updates):
            agent.update_epoch()
            agent.train_epoch()

    return train


if __name__ == "__main__":
    measure(updates, arguments("num_envs"))
