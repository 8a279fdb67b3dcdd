"""gymnax/CartPole-v1 with PPO in JAX: gymnax's cart-pole, on the device."""

from lockstep.algorithms.ppo import PPOConfig
from lockstep.run import NetworkConfig, Run


def recipe() -> Run:
    """The PPO settings that gymnax's authors publish: `agents/CartPole-v1/ppo.yaml` of their gymnax-blines.

    Ranks are compared every 100 updates: a transfer to the host costs as much as an update.
    """
    return Run(
        task="gymnax/CartPole-v1",
        ml_framework="jax",
        num_envs=8,
        total_steps=150_000,
        log_every=25_000,
        evaluate_every=25_000,
        check_every=100,
        network=NetworkConfig(hidden=(64, 64), activation="relu", initialization="uniform"),
        algorithm=PPOConfig(
            num_steps=32,
            num_epochs=4,
            num_minibatches=4,
            learning_rate=5e-4,
            learning_rate_schedule="constant",
            gamma=0.99,
            gae_lambda=0.95,
            clip_range=0.2,
            value_clip_range=0.2,
            value_coef=0.5,
            entropy_coef=0.01,
            max_grad_norm=0.5,
            adam_eps=1e-5,
        ),
    )
