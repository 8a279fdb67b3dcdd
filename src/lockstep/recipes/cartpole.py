"""CartPole-v1 with PPO: solved (a mean return of 475 over 100 episodes) in seconds on a CPU."""

from lockstep.algorithms.ppo import PPOConfig
from lockstep.run import Run


def recipe() -> Run:
    """Many environments, short rollouts and many epochs learn in few steps; 32 environments allow 8 shards of 4."""
    return Run(
        task="CartPole-v1",
        device="cpu",  # so that two ranks need no two GPUs, for a network this small
        num_envs=32,
        total_steps=300_000,
        evaluate_every=20_000,
        algorithm=PPOConfig(
            num_steps=64,
            num_epochs=10,
            num_minibatches=8,
            learning_rate=1e-3,
            gamma=0.99,
            gae_lambda=0.95,
            entropy_coef=0.0,
        ),
    )
