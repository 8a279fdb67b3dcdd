"""brax/ant: Brax's four-legged ant runs, on the device in JAX."""

import math

from lockstep.algorithms.ppo import PPOConfig
from lockstep.run import NetworkConfig, Run


def recipe() -> Run:
    """The PPO settings that Brax publishes for this task, in `notebooks/training.ipynb` of github.com/google/brax.

    An update there learns from 32 minibatches of 2048 rollouts of 5 steps: 4096 environments x 80 steps here, over
    which advantages run, too. The networks are those of `make_ppo_networks`, and the first standard deviation is
    softplus(0). Lockstep clips actions where Brax takes their tanh, normalizes advantages over a whole rollout, and
    draws the first weights within 1 / sqrt(inputs) where Brax (lecun_uniform) draws them within sqrt(3 / inputs).
    """
    return Run(
        task="brax/ant",
        ml_framework="jax",
        num_envs=4096,
        total_steps=50_000_000,
        log_every=1_000_000,
        evaluate_every=5_000_000,
        check_every=10,
        network=NetworkConfig(
            hidden=(32, 32, 32, 32),
            critic_hidden=(256, 256, 256, 256, 256),
            activation="silu",
            initialization="uniform",
            initial_log_std=math.log(math.log(2.0)),
            state_dependent_std=True,
        ),
        algorithm=PPOConfig(
            num_steps=80,
            num_epochs=4,
            num_minibatches=32,
            learning_rate=3e-4,
            learning_rate_schedule="constant",
            reward_scale=10.0,
            gamma=0.97,
            gae_lambda=0.95,
            clip_range=0.3,
            value_coef=0.5,
            entropy_coef=0.01,
            max_grad_norm=None,
            normalize_observation=True,
            adam_eps=1e-8,
        ),
    )
