"""CartPole-v1 with DQN: solved (a mean return of 475 over 100 episodes) in a minute on a CPU."""

from lockstep.algorithms.dqn import DQNConfig
from lockstep.run import NetworkConfig, Run


def recipe() -> Run:
    """The settings of RL Baselines3 Zoo for this task, with 16 environments and double Q-learning.

    16 environments allow 4 shards of 4. Evaluations are frequent because the return fluctuates during training.
    """
    return Run(
        task="CartPole-v1",
        device="cpu",  # so that two ranks need no two GPUs, for a network this small
        algo="dqn",
        num_envs=16,
        total_steps=200_000,
        evaluate_every=5_000,
        check_every=100,
        network=NetworkConfig(hidden=(256, 256), activation="relu"),
        algorithm=DQNConfig(
            num_steps=16,
            updates_per_step=0.5,
            batch_size=64,
            learning_starts=1_000,
            capacity=100_000,
            learning_rate=2.3e-3,
            target_update_every=128,
            epsilon_end=0.04,
            epsilon_steps=8_000,
        ),
    )
