"""lockstep/Cartpole-v0: Isaac Lab's cart-pole (continuous force, 5 s episodes), without a simulator."""

from lockstep.algorithms.ppo import PPOConfig
from lockstep.run import NetworkConfig, Run


def recipe() -> Run:
    """The PPO settings that Isaac Lab publishes for skrl, with fewer environments, for CPUs.

    `value_coef` is twice skrl's value loss scale of 2.0: our value loss is half the squared error.
    """
    return Run(
        task="lockstep/Cartpole-v0",
        seed=42,
        num_envs=512,
        total_steps=2_000_000,
        log_every=50_000,
        evaluate_every=500_000,
        network=NetworkConfig(hidden=(32, 32), activation="elu", shared=True),
        algorithm=PPOConfig(
            num_steps=16,
            num_epochs=8,
            num_minibatches=8,
            learning_rate=3e-4,
            learning_rate_schedule="adaptive",
            desired_kl=0.008,
            value_clip_range=0.2,
            value_coef=4.0,
            entropy_coef=0.0,
            max_grad_norm=1.0,
        ),
    )
