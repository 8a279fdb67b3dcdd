"""Pendulum-v1 with PPO: a continuous action, learned to a mean return above -200."""

from lockstep.algorithms.ppo import PPOConfig
from lockstep.run import Run


def recipe() -> Run:
    """A short horizon (gamma 0.9) and long rollouts, as published for this task by RL Baselines3 Zoo."""
    return Run(
        task="Pendulum-v1",
        device="cpu",  # so that two ranks need no two GPUs, for a network this small
        num_envs=8,
        total_steps=300_000,
        stop_return=-200.0,
        algorithm=PPOConfig(
            num_steps=512,
            num_epochs=10,
            num_minibatches=32,
            learning_rate=1e-3,
            gamma=0.9,
            gae_lambda=0.95,
            entropy_coef=0.0,
        ),
    )
