"""Default settings of each algorithm by the kind of task, and of single tasks, as plain tables.

`lockstep.session.task_defaults` finds the kind of a task. A setting that is not listed has the default of its class.
Keys are names that `--set` accepts.
"""

from collections.abc import Mapping
from typing import Any, Literal

Kind = Literal["discrete", "continuous", "pixels", "device"]
"""`discrete`: choices, from a vector. `continuous`: real numbers as actions, from a vector. `pixels`: images, with any
actions. `device`: simulators on the learner's device, thousands of environments at a time."""

Settings = Mapping[str, Any]

PPO: Mapping[Kind, Settings] = {
    # Rollouts of 2048 steps and minibatches of 64, as published for continuous control, from 16 environments: 4 ranks
    # have 4 each. Rewards are divided by the standard deviation of the return: without, the critic of a long run
    # saturates.
    "discrete": {
        "num_envs": 16,
        "total_steps": 500_000,
        "num_epochs": 10,
        "num_minibatches": 32,
        "learning_rate": 3e-4,
        "normalize_observation": True,
        "normalize_return": True,
    },
    # Schulman et al., 2017, with the normalizers of Engstrom et al., 2020 (arXiv:2005.12729).
    "continuous": {
        "num_envs": 16,
        "total_steps": 1_000_000,
        "num_epochs": 10,
        "num_minibatches": 32,
        "learning_rate": 3e-4,
        "entropy_coef": 0.0,
        "normalize_observation": True,
        "normalize_return": True,
        "evaluate_every": 100_000,
        "evaluate_episodes": 20,
    },
    # The Atari settings of Schulman et al., 2017.
    "pixels": {
        "num_envs": 8,
        "total_steps": 10_000_000,
        "clip_range": 0.1,
    },
    # Short rollouts of thousands of environments (Rudin et al., 2022, arXiv:2109.11978).
    "device": {
        "num_envs": 4096,
        "total_steps": 50_000_000,
        "num_steps": 24,
        "num_epochs": 5,
        "num_minibatches": 4,
        "learning_rate": 1e-3,
        "learning_rate_schedule": "adaptive",
        "entropy_coef": 0.0,
        "max_grad_norm": 1.0,
        "normalize_observation": True,
        "normalize_value": True,
        "log_every": 1_000_000,
        "evaluate_every": 10_000_000,
        "checkpoint_every": 10_000_000,
    },
}

DQN: Mapping[Kind, Settings] = {
    # Those of RL Baselines3 Zoo for LunarLander-v2 (hyperparams/dqn.yml), with half of its gradient steps. The defaults
    # of the class are for images: on vectors they learn unevenly (docs/results/learning.md).
    "discrete": {
        "learning_rate": 6.3e-4,
        "batch_size": 128,
        "updates_per_step": 0.5,
        "learning_starts": 1000,
        "target_update_every": 250,
        "epsilon_steps": 12_000,
        "network.hidden": (256, 256),
        "network.activation": "relu",
    },
}

# Episodes of robots have up to 1000 steps: evaluations of 100 of them would take longer than the training between.
_ROBOT: Settings = {
    "total_steps": 1_000_000,
    "evaluate_every": 100_000,
    "evaluate_episodes": 20,
}
# Critics learn faster than the policy, as in CleanRL (sac_continuous_action.py). With 3e-4 for both, Hopper-v5 is
# learned less surely: docs/results/learning.md.
_SAC_ROBOT: Settings = {**_ROBOT, "critic_learning_rate": 1e-3}
# The step size of Fujimoto et al., 2018. With 3e-4, that of their later code, Hopper-v5 is learned more slowly. Single
# policies of a run may fall at once, their average does not: docs/results/learning.md.
_TD3_ROBOT: Settings = {**_ROBOT, "learning_rate": 1e-3, "policy_average": 0.1}

_SAC: Mapping[Kind, Settings] = {"continuous": _SAC_ROBOT, "device": _SAC_ROBOT}
_TD3: Mapping[Kind, Settings] = {"continuous": _TD3_ROBOT, "device": _TD3_ROBOT}

BY_ALGORITHM: Mapping[str, Mapping[Kind, Settings]] = {"ppo": PPO, "dqn": DQN, "sac": _SAC, "td3": _TD3}
"""The tables by algorithm. An algorithm or a kind that is missing has the defaults of its classes."""

# Those of the kind reach returns of 1645 (HalfCheetah-v5) and 62 (Swimmer-v5).
_PPO_TASKS: Mapping[str, Settings] = {
    # Many small steps of wide networks, and actions that begin with a standard deviation of 0.14. With 16 environments
    # of 32 steps, one run stayed below 4000.
    "HalfCheetah": {
        "num_envs": 4,
        "num_epochs": 20,
        "num_minibatches": 8,
        "learning_rate": 2.0633e-5,
        "learning_rate_schedule": "constant",
        "gamma": 0.98,
        "gae_lambda": 0.92,
        "clip_range": 0.1,
        "entropy_coef": 0.0004,
        "value_coef": 0.58,
        "max_grad_norm": 0.8,
        "network.hidden": (256, 256),
        "network.activation": "relu",
        "network.initialization": "uniform",
        "network.initial_log_std": -2.0,
    },
    "Swimmer": {
        "num_steps": 256,
        "num_minibatches": 16,
        "learning_rate": 6e-4,
        "gamma": 0.9999,
        "gae_lambda": 0.98,
    },
}

BY_TASK: Mapping[str, Mapping[str, Settings]] = {"ppo": _PPO_TASKS}
"""Settings of single tasks by algorithm, and by the task's id without its version. They change those of its kind. RL
Baselines3 Zoo published them (https://github.com/DLR-RM/rl-baselines3-zoo, hyperparams/ppo.yml)."""
