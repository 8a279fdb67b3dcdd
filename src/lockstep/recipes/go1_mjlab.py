"""Mjlab-Velocity-Flat-Unitree-Go1: mjlab's Unitree Go1 follows velocities on flat ground, on torch tensors."""

import math

from lockstep.algorithms.ppo import PPOConfig
from lockstep.run import NetworkConfig, Run


def recipe() -> Run:
    """The rsl_rl settings that mjlab registers with this task, and the 4096 environments of its documentation.

    `lockstep train Mjlab-Velocity-Flat-Unitree-Go1` reads them from the installed mjlab. `value_coef` is twice that of
    rsl_rl: our value loss is half the squared error.
    """
    return Run(
        task="Mjlab-Velocity-Flat-Unitree-Go1",
        seed=42,
        num_envs=4096,
        total_steps=10_000 * 4096 * 24,
        log_every=10 * 4096 * 24,
        evaluate_every=None,
        check_every=50,
        network=NetworkConfig(hidden=(512, 256, 128), activation="elu", initialization="uniform", shared=False),
        algorithm=PPOConfig(
            num_steps=24,
            num_epochs=5,
            num_minibatches=4,
            learning_rate=1e-3,
            learning_rate_schedule="adaptive",
            desired_kl=0.01,
            adapt_every="minibatch",
            adapt_before_step=True,
            gamma=0.99,
            gae_lambda=0.95,
            clip_range=0.2,
            value_clip_range=0.2,
            value_coef=2.0,
            entropy_coef=0.01,
            max_grad_norm=1.0,
            normalize_observation=True,
            observation_limit=math.inf,
            adam_eps=1e-8,
        ),
    )
