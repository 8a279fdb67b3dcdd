"""Pong from pixels with PPO: above 18 of 21 points on CPUs."""

from lockstep.algorithms.ppo import PPOConfig
from lockstep.run import NetworkConfig, Run


def recipe() -> Run:
    """The Atari settings of Schulman et al., 2017, with the network of 2013 and twice the learning rate.

    Evaluations sample actions, too: with the most likely action a rally may never end.
    """
    return Run(
        task="PongNoFrameskip-v4",
        num_envs=16,
        total_steps=5_000_000,
        stop_return=18.0,
        evaluate_every=100_000,
        evaluate_episodes=16,
        evaluate_greedy=False,
        network=NetworkConfig(encoder="small", features=256),
        algorithm=PPOConfig(
            num_steps=128,
            num_epochs=3,
            num_minibatches=8,
            learning_rate=5e-4,
            gamma=0.99,
            gae_lambda=0.95,
            clip_range=0.1,
            entropy_coef=0.01,
        ),
    )
