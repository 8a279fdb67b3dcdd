"""CartPole-v1 with PPO: solved (a mean return of 475 over 100 episodes) in seconds on a CPU."""

from lockstep.algorithms.ppo import PPOConfig
from lockstep.run import Run


def recipe() -> Run:
    """Short rollouts and many passes: few environment steps, little waiting."""
    return Run(
        task="CartPole-v1",
        num_envs=8,
        total_steps=300_000,
        evaluate_every=20_000,
        algorithm=PPOConfig(
            num_steps=128,
            num_epochs=10,
            num_minibatches=4,
            learning_rate=1e-3,
            gamma=0.99,
            gae_lambda=0.95,
            entropy_coef=0.0,
        ),
    )
