"""CartPole-v1 on the device with PPO in JAX: environments, rollouts and updates in one compiled function."""

from lockstep.algorithms.ppo import PPOConfig
from lockstep.run import Run


def recipe() -> Run:
    """As `cartpole`, but ranks are compared every 100 updates: a transfer to the host costs as much as an update."""
    return Run(
        task="jax/CartPole-v1",
        ml_framework="jax",
        num_envs=32,
        total_steps=500_000,
        log_every=50_000,
        evaluate_every=50_000,
        check_every=100,
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
